/** Changes of files on the server, as they happen. Continues after the connection breaks, and reports gaps. */

import { ConnectionLost, isAway } from "./errors.js";
import type { Http, HttpCall } from "./http.js";
import { eventsOf } from "./sse.js";

const FIRST_PAUSE = 100;
const MAX_PAUSE = 5_000;

/** The kind of a change. */
export interface Change {
  /** With `overflow`, there were too many changes to report: scan this path again. */
  readonly kind: "added" | "modified" | "deleted" | "overflow";
  /** Absolute. */
  readonly path: string;
}

/**
 * The changes, from when `ready` resolves on. A connection that breaks is made again, followed by an `overflow`.
 *
 * It ends when the watched path is gone, and when you leave the loop.
 */
export class Watch implements AsyncIterableIterator<Change>, AsyncDisposable {
  /** Resolves when the server has begun to watch: from then on nothing is missed. */
  readonly ready: Promise<void>;
  /** The watched path, as you gave it. */
  readonly path: string;
  readonly #http: Http;
  readonly #query: NonNullable<HttpCall["query"]>;
  readonly #left = new AbortController();
  readonly #changes: AsyncGenerator<Change, void, undefined>;
  #first: Promise<Response>;
  #ended: string | undefined;

  /** @internal */
  constructor(http: Http, path: string, query: NonNullable<HttpCall["query"]>) {
    this.path = path;
    this.#http = http;
    this.#query = query;
    this.#first = this.#open();
    this.ready = this.#first.then(() => undefined);
    this.ready.catch(() => undefined);
    this.#changes = this.#run();
  }

  /** Why no more changes come: `gone` (it was deleted or moved), or `exhausted` (the kernel watches no more). */
  get ended(): string | undefined {
    return this.#ended;
  }

  /** The next change, once there is one. */
  async next(): Promise<IteratorResult<Change, void>> {
    return await this.#changes.next();
  }

  /** Ends the watch, also for a pending `next()`. */
  async return(): Promise<IteratorResult<Change, void>> {
    this.#left.abort(new ConnectionLost("the watch was left"));
    this.#first.then((response) => response.body?.cancel()).catch(() => undefined);
    return await this.#changes.return();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }

  async #open(): Promise<Response> {
    const headers = { Accept: "text/event-stream" };
    return await this.#http.send("GET", "/v1/fs/watch", { query: this.#query, headers, signal: this.#left.signal });
  }

  async *#run(): AsyncGenerator<Change, void, undefined> {
    let response: Response | undefined = await this.#first;
    let lostAt: number | undefined;
    let pause = FIRST_PAUSE;
    while (!this.#left.signal.aborted) {
      let failure: unknown = new ConnectionLost(`${this.#http.url} stopped and does not watch ${this.path} any more`);
      try {
        if (response === undefined) {
          response = await this.#open();
          yield { kind: "overflow", path: this.path };
        }
        lostAt = undefined;
        pause = FIRST_PAUSE;
        yield* this.#told(response);
      } catch (error) {
        failure = error;
      }
      if (this.#ended !== undefined || this.#left.signal.aborted) return;
      if (!isAway(failure)) throw failure;
      response = undefined;
      lostAt ??= Date.now();
      if (Date.now() - lostAt > this.#http.timeout) throw failure;
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
      pause = Math.min(2 * pause, MAX_PAUSE);
    }
  }

  async *#told(response: Response): AsyncGenerator<Change, void, undefined> {
    try {
      for await (const events of eventsOf(this.#http.body(response))) {
        for (const { event, data } of events) {
          if (event === "changes") yield* (JSON.parse(data) as { changes: Change[] }).changes;
          else if (event === "overflow") yield { kind: "overflow", path: this.path };
          else if (event === "ended") {
            const { reason } = JSON.parse(data) as { reason: string };
            if (reason !== "stopping") this.#ended = reason;
            return;
          }
        }
      }
    } catch (error) {
      throw this.#http.lost(error, this.#left.signal);
    }
  }
}
