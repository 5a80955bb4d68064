/**
 * Which lines of two texts stay, go and come (pure): first by the lines that each text has once, then between those by
 * the fewest edits. The work is bounded: where lines repeat too much to be told apart, all of a part goes and all comes.
 */

import { diffArrays } from "diff";

/** Lines in a row that stay, go or come. */
export interface Run {
  readonly kind: "same" | "removed" | "added";
  readonly count: number;
}

/** A part of both texts, from a line up to one that is not in it. */
interface Part {
  readonly oldFrom: number;
  readonly oldTo: number;
  readonly newFrom: number;
  readonly newTo: number;
}

/** Insertions and deletions that are looked for one by one between two lines that stay. */
const MAX_EDITS = 300;
/** Steps of such searches in all; one for n edits takes n². */
const MAX_STEPS = 150_000;
/** A part between unique lines may have unique lines of its own, and so on. */
const DEEPEST = 8;

export function aligned(olds: readonly string[], news: readonly string[]): readonly Run[] {
  const alignment = new Alignment(olds, news);
  alignment.add({ oldFrom: 0, oldTo: olds.length, newFrom: 0, newTo: news.length }, 0);
  return alignment.runs;
}

class Alignment {
  readonly runs: Run[] = [];
  readonly #olds: readonly string[];
  readonly #news: readonly string[];
  #steps = MAX_STEPS;

  constructor(olds: readonly string[], news: readonly string[]) {
    this.#olds = olds;
    this.#news = news;
  }

  add({ oldFrom, oldTo, newFrom, newTo }: Part, depth: number): void {
    const most = Math.min(oldTo - oldFrom, newTo - newFrom);
    let start = 0;
    while (start < most && this.#olds[oldFrom + start] === this.#news[newFrom + start]) start += 1;
    let end = 0;
    while (end < most - start && this.#olds[oldTo - 1 - end] === this.#news[newTo - 1 - end]) end += 1;
    this.#say("same", start);
    this.#addMiddle(
      { oldFrom: oldFrom + start, oldTo: oldTo - end, newFrom: newFrom + start, newTo: newTo - end },
      depth,
    );
    this.#say("same", end);
  }

  #addMiddle(part: Part, depth: number): void {
    const { oldFrom, oldTo, newFrom, newTo } = part;
    if (oldFrom === oldTo || newFrom === newTo) {
      this.#replace(part);
      return;
    }
    const anchors = depth < DEEPEST ? this.#anchors(part) : [];
    if (anchors.length === 0) {
      this.#search(part);
      return;
    }
    let [old, fresh] = [oldFrom, newFrom];
    for (const [oldAt, newAt] of anchors) {
      this.add({ oldFrom: old, oldTo: oldAt, newFrom: fresh, newTo: newAt }, depth + 1);
      this.#say("same", 1);
      [old, fresh] = [oldAt + 1, newAt + 1];
    }
    this.add({ oldFrom: old, oldTo, newFrom: fresh, newTo }, depth + 1);
  }

  /** Lines that both texts have once in this part, as many as are in the same order. */
  #anchors({ oldFrom, oldTo, newFrom, newTo }: Part): readonly (readonly [number, number])[] {
    const olds = onceIn(this.#olds, oldFrom, oldTo);
    const news = onceIn(this.#news, newFrom, newTo);
    const common: [number, number][] = [];
    for (const [line, at] of olds) {
      const other = news.get(line);
      if (at >= 0 && other !== undefined && other >= 0) common.push([at, other]);
    }
    return longestRising(common);
  }

  #search(part: Part): void {
    const olds = this.#olds.slice(part.oldFrom, part.oldTo);
    const news = this.#news.slice(part.newFrom, part.newTo);
    const known = new Set(olds);
    if (!news.some((line) => known.has(line))) {
      this.#replace(part);
      return;
    }
    const most = Math.min(MAX_EDITS, Math.floor(Math.sqrt(this.#steps)));
    const found = diffArrays(olds, news, { maxEditLength: most });
    if (found === undefined) {
      this.#steps -= most ** 2;
      this.#replace(part);
      return;
    }
    let edits = 0;
    for (const { added, removed, value } of found) {
      const kind = added ? "added" : removed ? "removed" : "same";
      if (kind !== "same") edits += value.length;
      this.#say(kind, value.length);
    }
    this.#steps = Math.max(0, this.#steps - edits ** 2);
  }

  #replace({ oldFrom, oldTo, newFrom, newTo }: Part): void {
    this.#say("removed", oldTo - oldFrom);
    this.#say("added", newTo - newFrom);
  }

  #say(kind: Run["kind"], count: number): void {
    const last = this.runs.at(-1);
    if (last?.kind === kind) this.runs[this.runs.length - 1] = { kind, count: last.count + count };
    else if (count > 0) this.runs.push({ kind, count });
  }
}

/** Where each line is, from the first to the last; −1 for one that is there more than once. */
function onceIn(lines: readonly string[], from: number, to: number): ReadonlyMap<string, number> {
  const places = new Map<string, number>();
  for (let at = from; at < to; at += 1) {
    const line = lines[at] as string;
    places.set(line, places.has(line) ? -1 : at);
  }
  return places;
}

/** The most pairs of which the second numbers rise as the first do. */
function longestRising(pairs: readonly [number, number][]): readonly [number, number][] {
  const ends: number[] = [];
  const before = new Int32Array(pairs.length);
  for (let index = 0; index < pairs.length; index += 1) {
    const wanted = (pairs[index] as [number, number])[1];
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((pairs[ends[middle] as number] as [number, number])[1] < wanted) low = middle + 1;
      else high = middle;
    }
    before[index] = low === 0 ? -1 : (ends[low - 1] as number);
    ends[low] = index;
  }
  const found: [number, number][] = [];
  for (let index = ends.at(-1) ?? -1; index >= 0; index = before[index] as number) found.push(pairs[index] as [number, number]);
  return found.reverse();
}
