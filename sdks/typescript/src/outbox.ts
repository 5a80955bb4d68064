/**
 * Sends envelopes by WebSocket, in order: each one until it has an outcome, on socket after socket.
 *
 * This module does not see outcomes: the caller's signal reports them. It knows nothing of HTTP.
 */

import { ConnectionGone, ConnectionLost } from "./errors.js";
import type { Post, Reply } from "./link.js";
import type { Socket } from "./socket.js";

/** One envelope that has no outcome yet. */
export interface Outgoing {
  readonly post: Post;
  /** The connection that it was sent on, by its number. */
  sentOn: number | undefined;
  /** Ends it with the server's answer, or with an error. */
  settle(reply: Reply): void;
  fail(error: unknown): void;
}

interface Entry extends Outgoing {
  timer: ReturnType<typeof setTimeout> | undefined;
}

/** The envelopes under way. */
export class Outbox {
  readonly #entries = new Set<Entry>();
  readonly #timeout: number;
  readonly #lost: () => ConnectionLost;
  #socket: Socket | undefined;
  #generation = 0;

  /** `lost` makes the failure of what waits for a socket for longer than `timeout` milliseconds. */
  constructor(timeout: number, lost: () => ConnectionLost) {
    this.#timeout = timeout;
    this.#lost = lost;
  }

  /** Sends an envelope as soon as there is a socket; ends when its signal aborts, or when it cannot be sent. */
  send(post: Post): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const over = (): void => {
        this.#remove(entry);
        post.signal?.removeEventListener("abort", abort);
      };
      const settle = (reply: Reply): void => {
        over();
        resolve(reply);
      };
      const fail = (error: unknown): void => {
        over();
        reject(error);
      };
      const abort = (): void => fail(post.signal?.reason);
      const entry: Entry = { post, sentOn: undefined, settle, fail, timer: undefined };
      if (post.signal?.aborted) return abort();
      post.signal?.addEventListener("abort", abort);
      this.#entries.add(entry);
      if (this.#socket === undefined) this.#wait(entry);
      else this.#write(entry, this.#socket);
    });
  }

  /** Uses a new socket: sends all envelopes without an outcome, in their first order. */
  opened(socket: Socket, generation: number): void {
    this.#socket = socket;
    this.#generation = generation;
    for (const entry of [...this.#entries]) {
      clearTimeout(entry.timer);
      entry.timer = undefined;
      this.#write(entry, socket);
    }
  }

  /** Notes that the socket is gone. If an envelope was too large for it, that is the largest one sent. */
  gone(socket: Socket, tooLarge: boolean): Outgoing | undefined {
    if (this.#socket !== socket) return undefined;
    this.#socket = undefined;
    for (const entry of this.#entries) this.#wait(entry);
    const sent = [...this.#entries].filter(({ sentOn }) => sentOn === this.#generation);
    const largest = sent.sort((one, other) => other.post.body.length - one.post.body.length)[0];
    if (!tooLarge || largest === undefined) return undefined;
    this.#remove(largest);
    return largest;
  }

  /** Returns all envelopes, to be sent in another way. */
  drain(): Outgoing[] {
    const entries = [...this.#entries];
    for (const entry of entries) this.#remove(entry);
    return entries;
  }

  /** Fails everything. */
  close(error: unknown): void {
    for (const entry of [...this.#entries]) entry.fail(error);
  }

  #write(entry: Entry, socket: Socket): void {
    const { post, sentOn } = entry;
    if (post.onlyOn !== undefined && post.onlyOn !== this.#generation) {
      entry.fail(new ConnectionGone("the connection that was asked is gone; what is still open is asked anew"));
    } else if (sentOn !== undefined && sentOn !== this.#generation && !post.elsewhere) {
      entry.fail(new ConnectionGone("the server went away before it had answered", { outcomeUnknown: true }));
    } else {
      entry.sentOn = this.#generation;
      post.trying?.();
      socket.send(post.body, post.key?.() ?? post.ackId);
    }
  }

  #wait(entry: Entry): void {
    entry.timer ??= setTimeout(() => entry.fail(this.#lost()), this.#timeout);
  }

  #remove(entry: Entry): void {
    clearTimeout(entry.timer);
    entry.timer = undefined;
    this.#entries.delete(entry);
  }
}
