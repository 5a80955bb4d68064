/**
 * The entries of a log, of which only some are in memory: the newest, and those that were looked at last.
 *
 * What is not there is read again, from where the log came from; a listener is called when it has come. Knows nothing
 * of what entries mean.
 */

import { type Entry, type Gap, isGap } from "./event.js";


/** Entries of a page. */
export const PAGE = 512;
/** Characters of JSON that are kept: all of most sessions, and of a busy one the last half hour. */
const WINDOW = 16 * 1024 * 1024;
/** Pages that are read at once. */
const AT_ONCE = 2;
/** Pages that wait to be read: those that were wanted last, as what was scrolled past is not wanted any more. */
const MAX_WANTED = 4;

/** Reads entries again: all between two ids, both exclusive. */
export type ReadAgain = (after: number, before: number) => Promise<readonly Entry[]>;

interface Page {
  readonly entries: Entry[];
  /** Characters of JSON; 0 as long as the page is not full. */
  size: number;
}

export class Pages {
  /** In the order in which they were used; the last one was used last. */
  readonly #kept = new Map<number, Page>();
  /** They are few, and their places cannot be read again. */
  readonly #gaps = new Map<number, Gap>();
  readonly #idAt: (index: number) => number | undefined;
  readonly #came: () => void;
  readonly #window: number;
  readonly #wanted: number[] = [];
  readonly #reading = new Set<number>();
  #length = 0;
  #size = 0;

  /** Nothing is let go without it. */
  readAgain: ReadAgain | undefined;

  /** `idAt` gives the id of an entry, `came` is called when something that was wanted is there. */
  constructor(idAt: (index: number) => number | undefined, came: () => void, window: number = WINDOW) {
    this.#idAt = idAt;
    this.#came = came;
    this.#window = window;
  }

  get length(): number {
    return this.#length;
  }

  /** Characters of JSON in memory, of pages that are full. */
  get size(): number {
    return this.#size;
  }

  push(entry: Entry): void {
    const number = Math.floor(this.#length / PAGE);
    if (isGap(entry)) this.#gaps.set(this.#length, entry);
    this.#length += 1;
    let page = this.#kept.get(number);
    if (page === undefined) {
      page = { entries: [], size: 0 };
      this.#kept.set(number, page);
    }
    page.entries.push(entry);
    if (page.entries.length === PAGE) this.#full(page);
  }

  /** An entry; undefined when it is not there, or not in memory. In this case it is read. */
  get(index: number): Entry | undefined {
    if (index < 0 || index >= this.#length) return undefined;
    const number = Math.floor(index / PAGE);
    const page = this.#kept.get(number);
    if (page === undefined) {
      this.#want(number);
      return undefined;
    }
    if (page.size > 0) {
      this.#kept.delete(number);
      this.#kept.set(number, page);
    }
    return page.entries[index % PAGE];
  }

  /** The first entries, page by page; what is not in memory is read, and not kept. */
  async *first(count: number): AsyncGenerator<readonly Entry[], void, undefined> {
    for (let at = 0; at < count; at += PAGE) {
      const page = this.#kept.get(at / PAGE)?.entries ?? (await this.#read(at / PAGE));
      yield page.slice(0, count - at);
    }
  }

  #full(page: Page): void {
    if (this.readAgain === undefined) return;
    page.size = page.entries.reduce((sum, entry) => sum + JSON.stringify(entry).length, 1);
    this.#size += page.size;
    this.#letGo();
  }

  #letGo(): void {
    for (const [number, page] of this.#kept) {
      if (this.#size <= this.#window) return;
      // The newest is still being written, and one alone may be larger than the window.
      if (page.size === 0 || this.#kept.size <= 2) continue;
      this.#kept.delete(number);
      this.#size -= page.size;
    }
  }

  #want(number: number): void {
    if (this.#reading.has(number)) return;
    const at = this.#wanted.indexOf(number);
    if (at >= 0) this.#wanted.splice(at, 1);
    this.#wanted.push(number);
    if (this.#wanted.length > MAX_WANTED) this.#wanted.shift();
    this.#readNext();
  }

  #readNext(): void {
    while (this.#reading.size < AT_ONCE) {
      const number = this.#wanted.pop();
      if (number === undefined) return;
      this.#reading.add(number);
      void this.#bring(number).finally(() => {
        this.#reading.delete(number);
        this.#readNext();
      });
    }
  }

  async #bring(number: number): Promise<void> {
    let entries: Entry[];
    try {
      entries = await this.#read(number);
    } catch {
      // The connection says what is wrong; the next look asks again.
      return;
    }
    if (this.#kept.has(number)) return;
    const page = { entries, size: 0 };
    this.#kept.set(number, page);
    this.#full(page);
    this.#came();
  }

  async #read(number: number): Promise<Entry[]> {
    const first = number * PAGE;
    const last = Math.min(first + PAGE, this.#length) - 1;
    const ids = Array.from({ length: last - first + 1 }, (_, at) => this.#idAt(first + at) as number);
    const found = (await this.readAgain?.((this.#idAt(first - 1) ?? 0), (ids.at(-1) as number) + 1)) ?? [];
    const byId = new Map(found.flatMap((entry) => (isGap(entry) ? [] : [[entry.id, entry] as const])));
    // The server may have let go of some meanwhile.
    return ids.map(
      (id, at) => this.#gaps.get(first + at) ?? byId.get(id) ?? { sessionUpdate: "gap", after: id - 1, resumesAt: id + 1 },
    );
  }
}
