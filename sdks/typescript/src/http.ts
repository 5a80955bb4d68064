/**
 * Calling the server over HTTP: its address, its token, and its refusals as errors.
 *
 * This module knows nothing of JSON-RPC, and repeats only requests that read.
 */

import { isNode } from "./environment.js";
import {
  ClientError,
  ConnectionLost,
  ForeignAnswer,
  InvalidCall,
  closed,
  foreign,
  isAway,
  problemIn,
} from "./errors.js";

/** The required part of `fetch`. */
export type Fetch = (input: string, init: RequestInit) => Promise<Response>;

/** Options of a request. */
export interface HttpCall {
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array | Blob | ReadableStream<Uint8Array>;
  readonly signal?: AbortSignal;
}

/** Failures that prove the server never got the request. */
const UNSENT = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

const FIRST_PAUSE = 100;
const MAX_PAUSE = 5_000;

/** One server, by its address. */
export class Http {
  readonly url: string;
  readonly token: string | undefined;
  /** Milliseconds that a request waits for a server that cannot be reached. */
  readonly timeout: number;
  /** Aborts when the client is closed. */
  closed = false;
  readonly #fetch: Fetch;

  constructor(url: string, token: string | undefined, fetch: Fetch | undefined, timeout: number) {
    if (!/^https?:\/\//.test(url))
      throw new InvalidCall(`${JSON.stringify(url)} is no address of a server: http://host:port`);
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.timeout = timeout;
    // Not `globalThis.fetch` itself: a browser's wants to be called on its window.
    this.#fetch = fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /**
   * The response to a request that went well, its body still to be read.
   *
   * @throws ServerProblem when the server refuses; ConnectionLost when it cannot be reached.
   */
  async send(method: string, path: string, call: HttpCall = {}): Promise<Response> {
    const headers: Record<string, string> = { ...call.headers };
    if (this.token !== undefined) headers["Authorization"] = `Bearer ${this.token}`;
    const init: RequestInit & { duplex?: "half" } = { method, headers, cache: "no-store", redirect: "error" };
    if (call.signal) init.signal = call.signal;
    if (call.body !== undefined) {
      init.body = call.body as BodyInit;
      if (call.body instanceof ReadableStream) init.duplex = "half";
    }
    const address = this.url + path + queryText(call.query);
    let response: Response;
    try {
      response = await this.#fetch(address, init);
    } catch (error) {
      throw this.lost(error, call.signal);
    }
    if (response.ok) return response;
    const text = await this.text(response, call.signal);
    throw problemIn(text) ?? foreign(this.url, response.status, response.headers.get("content-type"), text);
  }

  /** The whole body as text. */
  async text(response: Response, signal?: AbortSignal): Promise<string> {
    try {
      return await response.text();
    } catch (error) {
      throw this.lost(error, signal, true);
    }
  }

  /** The JSON that answers a request. The caller knows its type. */
  async json<T>(method: string, path: string, call: HttpCall = {}): Promise<T> {
    const response = await this.send(method, path, call);
    const text = await this.text(response, call.signal);
    try {
      return JSON.parse(text) as T;
    } catch {
      throw foreign(this.url, response.status, response.headers.get("content-type"), text);
    }
  }

  /** JSON that may be asked for any number of times: a server that is away is waited for. */
  async read<T>(path: string, query: HttpCall["query"] = {}): Promise<T> {
    const end = Date.now() + this.timeout;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, MAX_PAUSE)) {
      try {
        return await this.json<T>("GET", path, { query });
      } catch (error) {
        if (!isAway(error) || Date.now() + pause > end) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
      if (this.closed) throw closed();
    }
  }

  /** A body that continues for as long as you read it. */
  body(response: Response): ReadableStream<Uint8Array> {
    if (response.body === null) throw new ForeignAnswer("foreign-answer", "Foreign Answer", response.status, "no body");
    return response.body;
  }

  /** An error of `fetch`, as a named error. An abort by the caller's signal stays unchanged. */
  lost(error: unknown, signal?: AbortSignal, outcomeUnknown = false): unknown {
    if (signal?.aborted) return signal.reason;
    if (error instanceof ClientError) return error;
    const cause = error instanceof Error ? error.cause : undefined;
    const code = (cause as { code?: unknown } | undefined)?.code;
    const why =
      cause instanceof Error && cause.message ? cause.message : error instanceof Error ? error.message : String(error);
    const unsent = typeof code === "string" && UNSENT.has(code);
    return new ConnectionLost(`${this.url} cannot be reached: ${why}${this.#originHint()}`, {
      cause: error,
      outcomeUnknown: outcomeUnknown || !unsent,
    });
  }

  /** A browser does not tell a page why: no server, and one that does not allow the page, look alike. */
  #originHint(): string {
    const page = (globalThis as { location?: { origin?: string } }).location?.origin;
    if (isNode() || !page || page === new URL(this.url).origin) return "";
    const remedy = `start it with --cors-origin ${page}`;
    return `. Either there is no server, or it does not let pages of ${page} call it: ${remedy}`;
  }
}

function queryText(query: HttpCall["query"]): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined) pairs.append(name, String(value));
  }
  const text = pairs.toString();
  return text && `?${text}`;
}

/** Random bits as text, for a unique name. */
export function randomName(bytes = 16): string {
  // Not `randomUUID`: browsers have it on secure pages only.
  const bits = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(bits, (each) => each.toString(16).padStart(2, "0")).join("");
}
