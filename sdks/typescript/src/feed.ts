/**
 * The events of a session that one consumer has not read yet, in order, each once.
 *
 * A slow consumer delays no other: beyond a bound in bytes, live events are dropped here and read from the log
 * when the consumer catches up. This module does not read events.
 */

import type { Heard } from "./stream.js";

/** A part of the log. */
export interface Page {
  readonly heard: readonly Heard[];
  /** The position up to which it reaches. */
  readonly upto: number;
  /** Whether the log had more when it was read. */
  readonly more: boolean;
}

/** Reads the page of the log after a position. */
export type ReadPage = (after: number) => Promise<Page>;

/** Live events while they fit, pages of the log when they did not. */
export class Feed {
  readonly #limit: number;
  readonly #read: ReadPage;
  #queue = new Queue();
  /** Position of the last event that was queued. */
  #newest: number;
  /** Whether events were dropped since then. They are in the log. */
  #behind: boolean;
  #closed = false;
  #dropped = false;
  #failure: unknown;
  #last: Heard | undefined;
  #wake: (() => void) | undefined;

  /** `after` is where it begins; with `behind` it begins there with the log. */
  constructor(limit: number, after: number, read: ReadPage, behind = false) {
    this.#limit = limit;
    this.#newest = after;
    this.#read = read;
    this.#behind = behind;
  }

  /** Delivers an event; one that there is no room for is read from the log later. */
  push(heard: Heard): void {
    if (this.#behind || this.#closed) return;
    if (this.#queue.length > 0 && this.#queue.size + heard.size > this.#limit) {
      this.fallBehind();
      return;
    }
    this.#newest = heard.position;
    this.#queue.push(heard);
    this.#wake?.();
  }

  /** Something may be missing from here on: go on with the log. */
  fallBehind(): void {
    if (this.#closed) return;
    this.#behind = true;
    this.#wake?.();
  }

  /** Ends the feed after the queued events and the events that the log has now. */
  close(failure?: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#failure = failure;
    this.#wake?.();
  }

  /** There is no more to read than this: the log is gone. */
  end(last: Heard): void {
    this.#last = last;
    this.close();
  }

  /** Ends the feed: it has no reader any more. */
  drop(): void {
    this.#closed = true;
    this.#dropped = true;
    this.#queue = new Queue();
    this.#wake?.();
  }

  /** The next event; undefined when it was closed and all is read. Throws the error that it was closed with. */
  async next(): Promise<Heard | undefined> {
    for (;;) {
      if (this.#dropped) return undefined;
      const heard = this.#queue.shift();
      if (heard !== undefined) return heard;
      if (this.#behind) {
        await this.#catchUp();
      } else if (this.#last !== undefined) {
        const last = this.#last;
        this.#last = undefined;
        return last;
      } else if (this.#closed) {
        if (this.#failure !== undefined) throw this.#failure;
        return undefined;
      } else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        this.#wake = undefined;
      }
    }
  }

  /** Puts the next page of the log into the queue, and the live events of that time behind it. */
  async #catchUp(): Promise<void> {
    // From here on live events are kept again. The page is read later than this, so nothing falls in between.
    this.#behind = false;
    const after = this.#newest;
    let page: Page;
    try {
      page = await this.#read(after);
    } catch (error) {
      this.#queue = new Queue();
      if (this.#last !== undefined) return;
      this.#newest = after;
      this.#behind = true;
      throw error;
    }
    const live = this.#queue;
    this.#queue = new Queue();
    for (const heard of page.heard) this.#queue.push(heard);
    this.#newest = Math.max(after, page.upto);
    if (page.more) {
      // What came live lies beyond pages that are still to be read.
      this.#behind = true;
      return;
    }
    for (let heard = live.shift(); heard !== undefined; heard = live.shift()) {
      if (heard.position <= this.#newest) continue;
      this.#newest = heard.position;
      this.#queue.push(heard);
    }
  }
}

/** First in, first out; counts bytes. */
class Queue {
  size = 0;
  #entries: (Heard | undefined)[] = [];
  #first = 0;

  get length(): number {
    return this.#entries.length - this.#first;
  }

  push(heard: Heard): void {
    this.#entries.push(heard);
    this.size += heard.size;
  }

  shift(): Heard | undefined {
    const heard = this.#entries[this.#first];
    if (heard === undefined) return undefined;
    this.#entries[this.#first] = undefined;
    this.#first += 1;
    this.size -= heard.size;
    if (this.#first === this.#entries.length) {
      this.#entries = [];
      this.#first = 0;
    } else if (this.#first > 1024 && 2 * this.#first > this.#entries.length) {
      this.#entries.splice(0, this.#first);
      this.#first = 0;
    }
    return heard;
  }
}
