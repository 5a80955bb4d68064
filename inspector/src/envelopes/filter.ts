/** Which envelopes are shown: looked through in slices, so that no search in a long log holds up a frame. */

import { type Entry, isGap } from "../log/event.js";
import type { Row, Way } from "../log/rows.js";

/** What is wanted. */
export interface Filter {
  readonly ways: ReadonlySet<Way>;
  /** All methods when empty. */
  readonly method: string;
  readonly subtype: string;
  /** To be found anywhere in an envelope, or its event's id. */
  readonly text: string;
  readonly errors: boolean;
}

export const EVERYTHING: Filter = {
  ways: new Set<Way>(["toAgent", "fromAgent", "fromServer"]),
  method: "",
  subtype: "",
  text: "",
  errors: false,
};

/** Whether a filter lets everything through. */
export function isOpen({ ways, method, text, errors }: Filter): boolean {
  return ways.size === 3 && method === "" && text === "" && !errors;
}

/** An envelope that may be wanted; what is in it may have to be read first. */
export interface Candidate {
  readonly row: Row;
  readonly entry: () => Entry | undefined;
}

/**
 * Whether an envelope is wanted; undefined as long as it is not there to be looked into. Places where events are missing
 * are always shown.
 */
export function matches(filter: Filter, { row, entry }: Candidate): boolean | undefined {
  if (row.kind === "gap") return true;
  if (!filter.ways.has(row.way) || (filter.errors && !row.isError)) return false;
  if (filter.method !== "" && row.method !== filter.method) return false;
  if (filter.subtype !== "" && row.subtype !== filter.subtype) return false;
  if (filter.text === "") return true;
  const text = filter.text.toLowerCase();
  if (String(row.id) === text || `${row.method} ${row.subtype}`.toLowerCase().includes(text)) return true;
  const found = entry();
  if (found === undefined) return undefined;
  return !isGap(found) && JSON.stringify(found.envelope).toLowerCase().includes(text);
}

/** The places of all that a filter lets through, found as far as there was time. */
export class Matching {
  readonly filter: Filter;
  readonly found: number[] = [];
  #seen = 0;

  constructor(filter: Filter) {
    this.filter = filter;
  }

  get seen(): number {
    return this.#seen;
  }

  /** Looks on, up to a place or until the time is over; returns whether it got there. */
  advance(upto: number, at: (index: number) => Candidate, isLate: () => boolean): boolean {
    while (this.#seen < upto) {
      const isWanted = matches(this.filter, at(this.#seen));
      if (isWanted === undefined) return false;
      if (isWanted) this.found.push(this.#seen);
      this.#seen += 1;
      // A look at the clock costs more than a look at most envelopes.
      if (this.#seen % 64 === 0 && isLate()) break;
    }
    return this.#seen >= upto;
  }

  /** How many of what was found lie before a place. */
  countBefore(place: number): number {
    let low = 0;
    let high = this.found.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.found[middle] as number) < place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
