/**
 * The difference of two texts, as lines: what stays, what goes, what comes; and rows of a view, one below the other or
 * side by side.
 */

import { type ChangeObject, diffWordsWithSpace } from "diff";

import { aligned } from "./alignment.js";

/** A line of a difference, with its numbers in the old and the new text. */
export interface Line {
  readonly kind: "same" | "removed" | "added";
  readonly text: string;
  readonly old: number | undefined;
  readonly new: number | undefined;
}

/** Lines that stay and are left out of the view. */
export interface Fold {
  readonly kind: "fold";
  /** Which it is, among all lines. */
  readonly from: number;
  readonly lines: number;
}

/** Two lines beside each other; one of them may be missing. */
export interface Pair {
  readonly kind: "pair";
  readonly left: Line | undefined;
  readonly right: Line | undefined;
}

/** A part of a line, and whether it differs from its counterpart. */
export interface Word {
  readonly text: string;
  readonly changed: boolean;
}

const CONTEXT = 3;
/** Comparing words of longer lines helps no reader. */
const MAX_LINE = 600;

/** The lines of two texts; `undefined` is a file that was not there. */
export function linesOf(before: string | undefined, after: string): Line[] {
  return compared(split(before ?? ""), split(after));
}

/** The same of lines. */
export function compared(olds: readonly string[], news: readonly string[]): Line[] {
  const found: Line[] = [];
  let old = 0;
  let fresh = 0;
  for (const { kind, count } of aligned(olds, news)) {
    for (let index = 0; index < count; index += 1) {
      const text = (kind === "added" ? news[fresh] : olds[old]) as string;
      found.push({
        kind,
        text,
        old: kind === "added" ? undefined : (old += 1),
        new: kind === "removed" ? undefined : (fresh += 1),
      });
    }
  }
  return found;
}

/** How many lines come and go. */
export function countOf(lines: readonly Line[]): { readonly added: number; readonly removed: number } {
  let added = 0;
  let removed = 0;
  for (const { kind } of lines) {
    if (kind === "added") added += 1;
    else if (kind === "removed") removed += 1;
  }
  return { added, removed };
}

/** The lines with long runs of unchanged ones folded, except for those that `opened` names by where they begin. */
export function folded(lines: readonly Line[], opened: ReadonlySet<number> = new Set()): (Line | Fold)[] {
  const rows: (Line | Fold)[] = [];
  const copy = (from: number, to: number): void => {
    for (let at = from; at < to; at += 1) rows.push(lines[at] as Line);
  };
  for (let at = 0; at < lines.length;) {
    if (lines[at]?.kind !== "same") {
      rows.push(lines[at] as Line);
      at += 1;
      continue;
    }
    let end = at;
    while (end < lines.length && lines[end]?.kind === "same") end += 1;
    const from = at === 0 ? 0 : at + CONTEXT;
    const to = end === lines.length ? end : end - CONTEXT;
    if (to - from > 2 && !opened.has(from)) {
      copy(at, from);
      rows.push({ kind: "fold", from, lines: to - from });
      copy(to, end);
    } else {
      copy(at, end);
    }
    at = end;
  }
  return rows;
}

/** Rows side by side: what goes on the left, what comes in its place on the right. */
export function paired(rows: readonly (Line | Fold)[]): (Pair | Fold)[] {
  const pairs: (Pair | Fold)[] = [];
  for (let at = 0; at < rows.length;) {
    const row = rows[at] as Line | Fold;
    if (row.kind === "fold") pairs.push(row);
    else if (row.kind === "same") pairs.push({ kind: "pair", left: row, right: row });
    if (row.kind === "fold" || row.kind === "same") {
      at += 1;
      continue;
    }
    const left: Line[] = [];
    const right: Line[] = [];
    for (; rows[at]?.kind === "removed"; at += 1) left.push(rows[at] as Line);
    for (; rows[at]?.kind === "added"; at += 1) right.push(rows[at] as Line);
    for (let index = 0; index < Math.max(left.length, right.length); index += 1) {
      pairs.push({ kind: "pair", left: left[index], right: right[index] });
    }
  }
  return pairs;
}

/** For each changed line its counterpart: the first removed line of a run and the first added one, and so on. */
export function counterparts(lines: readonly Line[]): ReadonlyMap<Line, Line> {
  const found = new Map<Line, Line>();
  for (const pair of paired(lines)) {
    if (pair.kind === "pair" && pair.left && pair.right && pair.left !== pair.right) {
      found.set(pair.left, pair.right);
      found.set(pair.right, pair.left);
    }
  }
  return found;
}

/** The words of a line, marked where they differ; undefined when the lines have too little in common to say. */
export function wordsOf(line: Line, other: Line | undefined): readonly Word[] | undefined {
  if (!other || line.text.length > MAX_LINE || other.text.length > MAX_LINE) return undefined;
  const [removed, added] = line.kind === "removed" ? [line, other] : [other, line];
  const known = comparisons.get(removed);
  const parts = known?.added === added ? known.parts : diffWordsWithSpace(removed.text, added.text, { maxEditLength: 200 });
  // Both lines of a pair are drawn, one after the other.
  comparisons.set(removed, { added, parts });
  const mine = parts?.filter((part) => (line.kind === "removed" ? !part.added : !part.removed));
  const same =
    mine?.filter((part) => !part.added && !part.removed).reduce((sum, { value }) => sum + value.trim().length, 0) ?? 0;
  if (!mine || same * 3 < line.text.trim().length) return undefined;
  return mine.map((part) => ({ text: part.value, changed: part.added || part.removed }));
}

const comparisons = new WeakMap<Line, { readonly added: Line; readonly parts: readonly ChangeObject<string>[] | undefined }>();

function split(text: string): string[] {
  if (text === "") return [];
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}
