/** A turn: one prompt of ours, from when it is sent until its agent has answered. */

import type { ContentBlock } from "@agentclientprotocol/sdk";

import { META, type Connection } from "./connection.js";
import { RequestError } from "./errors.js";
import type { Feed } from "./feed.js";
import { Iteration } from "./iteration.js";
import type { Heard } from "./stream.js";
import { DECISION, GAP, TURN, type TurnItem, type TurnResult, UPDATE, itemOf, textOf } from "./updates.js";

/** A file that a prompt names. The server adds it to the prompt. */
export interface Attachment {
  /** Absolute, relative to the session's directory, or a `file://` URI; on the server's machine. */
  readonly path: string;
  /** Its media type; detected if absent. */
  readonly mime?: string;
  /** The name to show; by default the last part of the path. */
  readonly filename?: string;
}

/** Options of a prompt. */
export interface PromptOptions {
  /** Files for the agent, by their paths on the server's machine. */
  readonly attachments?: readonly (string | Attachment)[];
  /** The `_meta` of the prompt. */
  readonly meta?: Readonly<Record<string, unknown>>;
}

/**
 * A turn that runs. Iterate over what happens in it, or `await` how it ends; or both.
 *
 * It has begun already. Leaving the loop leaves it running.
 */
export class Turn implements AsyncIterable<TurnItem>, PromiseLike<TurnResult> {
  /** This client's id of the prompt. */
  readonly promptId: string;
  readonly #connection: Connection;
  readonly #sessionId: string;
  /** Where in the log it begins, at the earliest. */
  #since: number;
  readonly #result: Promise<TurnResult>;
  readonly #takingBack = new AbortController();
  #feed: Feed | undefined;
  #turnId: string | undefined;
  #started = false;
  #settled = false;
  #cancelled = false;

  /** @internal */
  constructor(connection: Connection, sessionId: string, prompt: ContentBlock[], options: PromptOptions) {
    this.promptId = connection.newPrompt();
    this.#connection = connection;
    this.#sessionId = sessionId;
    this.#since = connection.position;
    this.#feed = connection.feed(sessionId);
    this.#result = this.#run(prompt, options, this.#feed);
    // You may await or iterate it, but need not: an unobserved failure must not be reported as unhandled.
    this.#result.catch(() => undefined);
  }

  /** The server's id of the turn, after it has started. */
  get turnId(): string | undefined {
    return this.#turnId;
  }

  /** Awaiting a turn returns its end, and rejects with its error. */
  then<T = TurnResult, E = never>(
    fulfilled?: ((result: TurnResult) => T | PromiseLike<T>) | null,
    rejected?: ((reason: unknown) => E | PromiseLike<E>) | null,
  ): Promise<T | E> {
    return this.#result.then(fulfilled, rejected);
  }

  /** The agent's whole text, after the turn has ended. */
  async text(): Promise<string> {
    let text = "";
    for await (const item of this) text += textOf(item);
    return text;
  }

  /** Ends the turn; it then has the stop reason `cancelled`. */
  async cancel(): Promise<void> {
    if (this.#settled || this.#cancelled) return;
    this.#cancelled = true;
    // `session/cancel` ends the session's running turn: until ours starts, that is another client's.
    if (this.#started) await this.#connection.notify("session/cancel", { sessionId: this.#sessionId });
    else this.#takingBack.abort();
  }

  /** The updates of the turn; the last item is its end. A second loop starts at the beginning again. */
  [Symbol.asyncIterator](): Iteration<TurnItem> {
    const feed = this.#feed ?? this.#repeated();
    this.#feed = undefined;
    return new Iteration(this.#items(feed), () => this.#connection.drop(this.#sessionId, feed));
  }

  /** @internal The server announced this turn. */
  observe({ position, params }: Heard): void {
    this.#turnId = params["turnId"] as string;
    this.#started = params["state"] === "started";
    if (this.#started) this.#since = position - 1;
    if (this.#started && this.#cancelled) {
      this.#connection.notify("session/cancel", { sessionId: this.#sessionId }).catch(() => undefined);
    }
  }

  async #run(prompt: ContentBlock[], { attachments, meta }: PromptOptions, feed: Feed): Promise<TurnResult> {
    const files = attachments?.map((each) => (typeof each === "string" ? { path: each } : each));
    const ours = {
      ...(meta?.[META] as object | undefined),
      promptId: this.promptId,
      ...(files && { attachments: files }),
    };
    const params = { sessionId: this.#sessionId, prompt, _meta: { ...meta, [META]: ours } };
    try {
      const response = await this.#connection
        .request("session/prompt", params, { signal: this.#takingBack.signal })
        .catch((error: unknown) => this.#unlessTakenBack(error));
      const turnId = this.#turnId === undefined ? {} : { turnId: this.#turnId };
      return { ...response, ...turnId, promptId: this.promptId, sessionUpdate: "turn_ended" };
    } finally {
      this.#settled = true;
      // All of the turn was heard before its answer, or is in the log.
      feed.close();
      this.#connection.release(this.#sessionId, feed);
    }
  }

  /** An agent may say that a prompt was taken back, in place of a stop reason. */
  #unlessTakenBack(error: unknown): { stopReason: "cancelled" } {
    if (this.#cancelled && error instanceof RequestError && error.code === -32800) return { stopReason: "cancelled" };
    throw error;
  }

  #repeated(): Feed {
    const feed = this.#connection.feed(this.#sessionId, this.#since);
    if (this.#settled) {
      feed.close();
      this.#connection.release(this.#sessionId, feed);
    } else {
      void this.#result.finally(() => feed.close()).catch(() => undefined);
    }
    return feed;
  }

  async *#items(feed: Feed): AsyncGenerator<TurnItem, void, undefined> {
    try {
      let ours = false;
      for (let heard = await feed.next(); heard !== undefined; heard = await feed.next()) {
        if (heard.method === TURN) {
          if (heard.params["promptId"] === this.promptId) {
            if (heard.params["state"] === "ended") break;
            ours = true;
          } else {
            ours = false;
          }
        } else if (heard.method === GAP) {
          // Its beginning may be in what is gone.
          ours = true;
          yield item(heard);
        } else if (ours && (heard.method === UPDATE || heard.method === DECISION)) {
          yield item(heard);
        }
      }
      yield await this.#result;
    } finally {
      this.#connection.drop(this.#sessionId, feed);
    }
  }
}

function item(heard: Heard): TurnItem {
  return itemOf(heard) as TurnItem;
}
