/**
 * One session's log in this page: append-only, and its views at any moment.
 *
 * However many events come, listeners are called at most once per frame, and nothing is copied for one. What is
 * in the view need not stay: old entries are let go, and read again when a view shows them. Knows nothing
 * of where events come from.
 */

import { EMPTY_VIEW, SessionReducer, type SessionView } from "sandboxagent";
import { type Entry, isGap } from "./event.js";
import { PAGE, Pages, type ReadAgain } from "./pages.js";
import { Rows } from "./rows.js";

/** How many views are kept, from which those in between are made. Each may have the text of a long message up to its moment. */
const MAX_KEPT = 32;
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
  /** A line for each entry, also for those that are not in memory. */
  readonly rows: Rows = new Rows();
  readonly #pages: Pages;
  readonly #reducer = new SessionReducer();
  #taken = 0;
  /** Views after every so many entries: fewer, the longer the log. */
  #kept: SessionView[] = [EMPTY_VIEW];
  #step = PAGE;
  readonly #recent = new Map<number, SessionView>();
  /** Goes forward from where the last view at a moment was made. */
  #cursor: { reducer: SessionReducer; upto: number } | undefined;
  readonly #listeners = new Set<() => void>();
  readonly #schedule: Schedule;
  #scheduled = false;
  #reading: Reading = { state: "loading" };
  #shown: Shown = { view: EMPTY_VIEW, length: 0, reading: this.#reading };

  constructor(id: string, schedule: Schedule = atNextFrame, window?: number) {
    this.id = id;
    this.#schedule = schedule;
    this.#pages = new Pages((index) => this.rows.idAt(index), () => this.#changed(), window);
  }

  /** A log that is complete, such as one from a file. */
  static of(id: string, entries: Iterable<Entry>): SessionLog {
    const log = new SessionLog(id, (call) => call());
    for (const entry of entries) log.#add(entry);
    log.reading = { state: "complete" };
    return log;
  }

  get length(): number {
    return this.#pages.length;
  }

  /** Characters of JSON in memory. */
  get size(): number {
    return this.#pages.size;
  }

  /** How entries are read that were let go; without it all stay. */
  set readAgain(read: ReadAgain | undefined) {
    this.#pages.readAgain = read;
  }

  /** Id of the newest event. */
  get lastId(): number {
    return this.rows.idAt(this.length - 1) ?? 0;
  }

  get reading(): Reading {
    return this.#reading;
  }

  set reading(reading: Reading) {
    this.#reading = reading;
    this.#changed();
  }

  /** An entry; undefined when it has to be read first. Listeners hear when it has come. */
  entry(index: number): Entry | undefined {
    return this.#pages.get(index);
  }

  /** The first entries, in pieces. */
  first(count: number): AsyncIterable<readonly Entry[]> {
    return this.#pages.first(count);
  }

  /** Adds what comes next. What is there already, as after a reconnect, is passed over. */
  append(entry: Entry): void {
    if (this.#add(entry)) this.#changed();
  }

  #add(entry: Entry): boolean {
    const last = this.lastId;
    if (isGap(entry) ? entry.resumesAt <= last : entry.id <= last) return false;
    this.rows.add(entry);
    this.#pages.push(entry);
    this.#take(entry);
    return true;
  }

  /** How many entries there were at the moment of an event: it and all before. */
  countAt(id: number): number {
    return this.rows.countAt(id);
  }

  /**
   * The session after the event of an id; without one, as it is now.
   *
   * When entries have to be read for it, it is that of an earlier moment until they have come.
   */
  view(at?: number): SessionView {
    const count = at === undefined ? this.length : this.countAt(at);
    if (count === this.length) return this.#reducer.view;
    const known = this.#recent.get(count);
    if (known) return known;
    const { reducer, upto } = this.#goTo(count);
    const view = reducer.view;
    if (upto < count) return view;
    this.#recent.set(count, view);
    if (this.#recent.size > RECENT) this.#recent.delete(this.#recent.keys().next().value as number);
    return view;
  }

  #goTo(count: number): { readonly reducer: SessionReducer; readonly upto: number } {
    const step = Math.floor(count / this.#step);
    let cursor = this.#cursor;
    if (cursor === undefined || cursor.upto > count || cursor.upto < step * this.#step) {
      cursor = { reducer: new SessionReducer(this.#kept[step]), upto: step * this.#step };
      this.#cursor = cursor;
    }
    for (; cursor.upto < count; cursor.upto += 1) {
      const entry = this.#pages.get(cursor.upto);
      if (entry === undefined) break;
      cursor.reducer.add(entry);
    }
    return cursor;
  }

  #take(entry: Entry): void {
    this.#reducer.add(entry);
    this.#taken += 1;
    if (this.#taken % this.#step !== 0) return;
    this.#kept.push(this.#reducer.view);
    if (this.#kept.length <= MAX_KEPT) return;
    this.#kept = this.#kept.filter((_, index) => index % 2 === 0);
    this.#step *= 2;
  }

  // For listeners

  /** What there was when listeners were called last. */
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
