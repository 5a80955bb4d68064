/**
 * Every failure that the SDK has a name for.
 *
 * ClientError             what a caller catches to catch them all
 * ├── ServerProblem       the server refuses, and says why
 * │   └── ForeignAnswer   something answers that is no sandbox-agent, a proxy for example
 * ├── ConnectionLost      the server cannot be reached, or went away and the outcome is unknown
 * └── StartFailed         an embedded server did not start
 *
 * What goes wrong with a method of ACP is a `RequestError` of upstream, with code, message and data.
 */

const URN = "urn:sandbox-agent:error:";
const EXCERPT = 200;

/** What a caller catches to catch every failure of the SDK itself. */
export class ClientError extends Error {
  override name = "ClientError";
}

/** The server refuses, with an RFC 9457 document; the page on errors has every slug. */
export class ServerProblem extends ClientError {
  override name = "ServerProblem";
  /** What went wrong, by a name that does not change, such as `unknown-agent`. */
  readonly slug: string;
  /** What went wrong, in two or three words. */
  readonly title: string;
  /** The HTTP status. */
  readonly status: number;
  /** What went wrong and what to do, for people. */
  readonly detail: string;
  /** Further facts of the problem. */
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(
    slug: string,
    title: string,
    status: number,
    detail: string,
    fields: Readonly<Record<string, unknown>> = {},
  ) {
    super(detail ? `${title}: ${detail}` : title);
    this.slug = slug;
    this.title = title;
    this.status = status;
    this.detail = detail;
    this.fields = fields;
  }
}

/** What answered is no sandbox-agent: a proxy's page, another program; `status` is as it came. */
export class ForeignAnswer extends ServerProblem {
  override name = "ForeignAnswer";
}

/** The server cannot be reached, or went away before it had answered. */
export class ConnectionLost extends ClientError {
  override name = "ConnectionLost";
  /** Whether the server may have done what it was asked; false when the request certainly did not reach it. */
  readonly outcomeUnknown: boolean;

  constructor(message: string, options: ErrorOptions & { outcomeUnknown?: boolean } = {}) {
    super(message, options);
    this.outcomeUnknown = options.outcomeUnknown ?? false;
  }
}

/** An embedded server did not start; `stderr` is the end of what it said. */
export class StartFailed extends ClientError {
  override name = "StartFailed";
  /** The end of what the server wrote to stderr. */
  readonly stderr: string;

  constructor(message: string, stderr = "", options: ErrorOptions = {}) {
    super(stderr.trim() ? `${message}\n${stderr.trimEnd()}` : message, options);
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
  return new ServerProblem(type.slice(URN.length), title, status, typeof detail === "string" ? detail : "", fields);
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
  return error.slug === "shutting-down" || (error instanceof ForeignAnswer && [502, 503, 504].includes(error.status));
}

/** The failure of calls that are pending when the client is closed. */
export function closed(): ConnectionLost {
  return new ConnectionLost("this client was closed before the server had answered", { outcomeUnknown: true });
}
