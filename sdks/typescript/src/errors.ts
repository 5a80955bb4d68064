/**
 * Every failure that the SDK has a name for.
 *
 * SandboxAgentError           the base of all: it has `slug`, `message` and `fields`
 * └── ClientError             an error that the SDK raises
 *     ├── RequestError        a method failed, at the server or at the agent: a JSON-RPC error with code and data
 *     ├── ServerProblem       the server refuses, and says why
 *     │   ├── AlreadyAnswered a request of an agent is settled; it says by whom
 *     │   └── ForeignAnswer   the answer comes from another program, such as a proxy
 *     ├── ConnectionLost      the server cannot be reached, or went away and the outcome is unknown
 *     ├── StartFailed         an embedded server did not start
 *     └── InvalidCall         the call itself is wrong: nothing was sent
 */

import type { Decision } from "./updates.js";

const URN = "urn:sandbox-agent:error:";
const EXCERPT = 200;

/** The base of all errors of the SDK. `message` is for people. */
export class SandboxAgentError extends Error {
  override name = "SandboxAgentError";
  /** The name of the error, for programs, such as `unknown-agent`. It does not change. */
  readonly slug: string;
  /** Facts, such as the `path` of a file. */
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(
    slug: string,
    message: string,
    fields: Readonly<Record<string, unknown>> = {},
    options: ErrorOptions = {},
  ) {
    super(message, options);
    this.slug = slug;
    this.fields = fields;
  }
}

/** An error that the SDK raises. */
export class ClientError extends SandboxAgentError {
  override name = "ClientError";

  constructor(
    message: string,
    options: ErrorOptions & { slug?: string; fields?: Readonly<Record<string, unknown>> } = {},
  ) {
    const { slug = "client-error", fields = {}, ...rest } = options;
    super(slug, message, fields, rest);
  }
}

/**
 * A method failed, at the server or at the agent: a JSON-RPC error.
 *
 * `slug` is the name of an error of the server, else `request-failed`; `fields` are the members of `data`.
 */
export class RequestError extends ClientError {
  override name = "RequestError";
  /** JSON-RPC's code, such as -32602 for params that are wrong. */
  readonly code: number;
  /** The facts as they came. */
  readonly data: unknown;

  constructor(code: number, message: string, data?: unknown, options: ErrorOptions = {}) {
    const isObject = typeof data === "object" && data !== null && !Array.isArray(data);
    const { type, ...fields } = (isObject ? data : {}) as Record<string, unknown>;
    super(message, { ...options, slug: typeof type === "string" ? type : "request-failed", fields });
    this.code = code;
    this.data = data;
  }
}

/** The call itself is wrong, so nothing was sent: an argument, or the state of the client. */
export class InvalidCall extends ClientError {
  override name = "InvalidCall";

  constructor(message: string, options: ErrorOptions = {}) {
    super(message, { ...options, slug: "invalid-call" });
  }
}

/** The server refuses, with an RFC 9457 document; the page on errors has every slug. */
export class ServerProblem extends ClientError {
  override name = "ServerProblem";
  /** The error in two or three words. */
  readonly title: string;
  /** The HTTP status. */
  readonly status: number;
  /** The error and its remedy, for people. */
  readonly detail: string;

  constructor(
    slug: string,
    title: string,
    status: number,
    detail: string,
    fields: Readonly<Record<string, unknown>> = {},
  ) {
    super(detail ? `${title}: ${detail}` : title, { slug, fields });
    this.title = title;
    this.status = status;
    this.detail = detail;
  }
}

/** An agent's request is settled: another answer came first, or it was withdrawn. */
export class AlreadyAnswered extends ServerProblem {
  override name = "AlreadyAnswered";
  /** The outcome: `answered`, `rejected` or `cancelled`; empty if the server does not say. */
  readonly outcome: string;
  /** The decider and the decision, if the session's log has them. */
  readonly decision: Decision | undefined;

  constructor(detail: string, fields: Readonly<Record<string, unknown>> = {}, decision?: Decision) {
    super("already-answered", "Already Answered", 409, detail, fields);
    this.outcome = decision?.outcome ?? (typeof fields["outcome"] === "string" ? fields["outcome"] : "");
    this.decision = decision;
  }
}

/** The answer comes from another program, such as a proxy. `status` is its HTTP status. */
export class ForeignAnswer extends ServerProblem {
  override name = "ForeignAnswer";
}

/** The server cannot be reached, or went away before it had answered. */
export class ConnectionLost extends ClientError {
  override name = "ConnectionLost";
  /** Whether the server may have done what it was asked; false when the request certainly did not reach it. */
  readonly outcomeUnknown: boolean;

  constructor(message: string, options: ErrorOptions & { outcomeUnknown?: boolean } = {}) {
    const { outcomeUnknown = false, ...rest } = options;
    super(message, { ...rest, slug: "connection-lost", fields: { outcomeUnknown } });
    this.outcomeUnknown = outcomeUnknown;
  }
}

/** The connection that a request belonged to is gone, and the request with it. */
export class ConnectionGone extends ConnectionLost {}

/** An embedded server did not start. `stderr` is the end of its output. */
export class StartFailed extends ClientError {
  override name = "StartFailed";
  /** The end of what the server wrote to stderr. */
  readonly stderr: string;

  constructor(message: string, stderr = "", options: ErrorOptions = {}) {
    const whole = stderr.trim() ? `${message}\n${stderr.trimEnd()}` : message;
    super(whole, { ...options, slug: "start-failed", fields: { stderr } });
    this.stderr = stderr;
  }
}

/** The problem that a document describes; undefined if it is not one of sandbox-agent's. */
export function problemIn(document: string): ServerProblem | undefined {
  let told: unknown;
  try {
    told = JSON.parse(document);
  } catch {
    return undefined;
  }
  if (typeof told !== "object" || told === null) return undefined;
  const { type, title, status, detail, ...fields } = told as Record<string, unknown>;
  if (typeof type !== "string" || !type.startsWith(URN)) return undefined;
  if (typeof title !== "string" || typeof status !== "number") return undefined;
  const [slug, words] = [type.slice(URN.length), typeof detail === "string" ? detail : ""];
  if (slug === "already-answered") return new AlreadyAnswered(words, fields);
  return new ServerProblem(slug, title, status, words, fields);
}

/** The problem that an answer is not sandbox-agent's at all, with the beginning of what it is. */
export function foreign(url: string, status: number, contentType: string | null, body: string): ForeignAnswer {
  const excerpt = body
    .slice(0, 4 * EXCERPT)
    .replace(/\s+/g, " ")
    .trim()
    .slice(0, EXCERPT);
  const kind = contentType || "no content type";
  const detail = `${url} does not answer like sandbox-agent: status ${status}, ${kind}`;
  return new ForeignAnswer(
    "foreign-answer",
    "Foreign Answer",
    status,
    excerpt ? `${detail}, ${JSON.stringify(excerpt)}` : detail,
    { url, contentType, excerpt },
  );
}

/** Whether a refusal only says that the server is not there at the moment. */
export function isAway(error: unknown): boolean {
  if (!(error instanceof ServerProblem)) return error instanceof ConnectionLost;
  const away = error.slug === "shutting-down" || error.slug === "fleet-unreachable";
  return away || (error instanceof ForeignAnswer && [502, 503, 504].includes(error.status));
}

/** The failure of calls that are pending when the client is closed. */
export function closed(): ConnectionLost {
  return new ConnectionLost("this client was closed before the server had answered", { outcomeUnknown: true });
}
