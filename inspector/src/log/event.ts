/** One event of a session's log, as the server keeps it and as an exported file has it; and the ids of several. */

import type { Gap, LogEvent } from "sandboxagent";

export type { Gap, LogEvent };

/** Whose an envelope is. */
export type Direction = LogEvent["direction"];

/** A JSON-RPC id. */
export type RpcId = string | number;

/** What a log consists of: events, and places where events are no longer kept. */
export type Entry = LogEvent | Gap;

/** Whether an entry says that something is missing. */
export function isGap(entry: Entry): entry is Gap {
  return !("envelope" in entry);
}

/**
 * The ids of the events that something came from, oldest first.
 *
 * It never changes. What is added makes a new one, which shares its storage with this one: a text of fifty thousand
 * pieces costs one list, at whatever moments it is looked at.
 */
export class EventIds implements Iterable<number> {
  readonly #ids: number[];
  readonly length: number;

  private constructor(ids: number[], length: number) {
    this.#ids = ids;
    this.length = length;
  }

  static of(...ids: number[]): EventIds {
    return new EventIds(ids, ids.length);
  }

  get first(): number {
    return this.#ids[0] ?? 0;
  }

  get last(): number {
    return this.#ids[this.length - 1] ?? 0;
  }

  /** These and one more. */
  with(id: number): EventIds {
    // Another reader may have continued from here: with the same event, as logs are read again, or with another one.
    if (this.#ids.length > this.length && this.#ids[this.length] !== id) {
      return new EventIds([...this, id], this.length + 1);
    }
    this.#ids[this.length] = id;
    return new EventIds(this.#ids, this.length + 1);
  }

  has(id: number): boolean {
    let low = 0;
    let high = this.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.#ids[middle] as number;
      if (found === id) return true;
      if (found < id) low = middle + 1;
      else high = middle - 1;
    }
    return false;
  }

  *[Symbol.iterator](): Iterator<number> {
    for (let index = 0; index < this.length; index += 1) yield this.#ids[index] as number;
  }
}
