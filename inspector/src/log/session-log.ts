/**
 * One session's log in this page: append-only, and its views at any moment.
 *
 * However many events come, listeners hear of them at most once per frame, and nothing is copied for one. Knows
 * nothing of where events come from.
 */

import { type Entry, isGap } from "./event.js";
import { Fold, NOTHING_YET } from "./fold.js";
import type { SessionView } from "./view.js";

/** How many entries lie between two views that are kept, from which those in between are made. */
const STEP = 512;
/** How many views at a moment are kept besides. */
const RECENT = 16;

/** Calls back at the next frame. */
export type Schedule = (call: () => void) => void;

/** Where reading stands: what is there is being read; all of it was; no more will come; it cannot be read. */
export type Reading =
  | { readonly state: "loading" }
  | { readonly state: "live" }
  | { readonly state: "complete" }
  | { readonly state: "failed"; readonly error: unknown };

/** What listeners see: it changes once per frame at most. */
export interface Shown {
  readonly view: SessionView;
  /** How many entries the log has. */
  readonly length: number;
  readonly reading: Reading;
}

export class SessionLog {
  readonly id: string;
  readonly #entries: Entry[] = [];
  /** The id of the last event before or at each entry: entries that are gaps have none of their own. */
  readonly #ids: number[] = [];
  readonly #fold = new Fold();
  #folded = 0;
  /** Views after every `STEP` entries. */
  readonly #kept: SessionView[] = [NOTHING_YET];
  readonly #recent = new Map<number, SessionView>();
  /** Goes forward from where the last view at a moment was made. */
  #cursor: { fold: Fold; upto: number } | undefined;
  readonly #listeners = new Set<() => void>();
  readonly #schedule: Schedule;
  #scheduled = false;
  #reading: Reading = { state: "loading" };
  #shown: Shown = { view: NOTHING_YET, length: 0, reading: this.#reading };

  constructor(id: string, schedule: Schedule = atNextFrame) {
    this.id = id;
    this.#schedule = schedule;
  }

  /** A log that is complete, such as one from a file. */
  static of(id: string, entries: Iterable<Entry>): SessionLog {
    const log = new SessionLog(id, (call) => call());
    for (const entry of entries) log.#add(entry);
    log.reading = { state: "complete" };
    return log;
  }

  get length(): number {
    return this.#entries.length;
  }

  /** Id of the newest event. */
  get lastId(): number {
    return this.#ids.at(-1) ?? 0;
  }

  get reading(): Reading {
    return this.#reading;
  }

  set reading(reading: Reading) {
    this.#reading = reading;
    this.#changed();
  }

  entry(index: number): Entry | undefined {
    return this.#entries[index];
  }

  /** Adds what comes next. What is there already, as after a reconnect, is passed over. */
  append(entry: Entry): void {
    if (this.#add(entry)) this.#changed();
  }

  #add(entry: Entry): boolean {
    const last = this.lastId;
    if (isGap(entry) ? entry.resumesAt <= last : entry.id <= last) return false;
    this.#entries.push(entry);
    this.#ids.push(isGap(entry) ? Math.max(last, entry.after) : entry.id);
    return true;
  }

  /** How many entries there were at the moment of an event: it and all before. */
  countAt(id: number): number {
    let low = 0;
    let high = this.#ids.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#ids[middle] as number) <= id) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The session after the event of an id; without one, as it is now. */
  view(at?: number): SessionView {
    const count = at === undefined ? this.length : this.countAt(at);
    this.#foldAll();
    if (count === this.length) return this.#fold.view();
    const known = this.#recent.get(count);
    if (known) return known;
    const view = this.#viewOf(count);
    this.#recent.set(count, view);
    if (this.#recent.size > RECENT) this.#recent.delete(this.#recent.keys().next().value as number);
    return view;
  }

  #viewOf(count: number): SessionView {
    const step = Math.floor(count / STEP);
    let cursor = this.#cursor;
    if (cursor === undefined || cursor.upto > count || cursor.upto < step * STEP) {
      cursor = { fold: new Fold(this.#kept[step]), upto: step * STEP };
      this.#cursor = cursor;
    }
    for (; cursor.upto < count; cursor.upto += 1) cursor.fold.add(this.#entries[cursor.upto] as Entry);
    return cursor.fold.view();
  }

  #foldAll(): void {
    while (this.#folded < this.#entries.length) {
      this.#fold.add(this.#entries[this.#folded] as Entry);
      this.#folded += 1;
      if (this.#folded % STEP === 0) this.#kept.push(this.#fold.view());
    }
  }

  // For listeners

  /** What there was when listeners heard of it last. */
  readonly shown = (): Shown => this.#shown;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  #changed(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#schedule(() => {
      this.#scheduled = false;
      this.#shown = { view: this.view(), length: this.length, reading: this.#reading };
      for (const listener of [...this.#listeners]) listener();
    });
  }
}

/** At the next frame; in a page that is not shown, and so has no frames, soon. */
function atNextFrame(call: () => void): void {
  const once = (): void => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    call();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, 200);
}
