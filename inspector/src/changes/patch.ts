/** Changes as a patch that `git apply` takes (pure). */

import { type Line, compared } from "../text/changes.js";
import { type Start, WHOLE_FILE } from "../text/numbering.js";
import type { Change, ChangedFile } from "./review.js";

/** A patch of everything that was done, beneath a directory. */
export function patchOf(files: readonly ChangedFile[], cwd: string | undefined): string {
  return files.map(({ path, changes }) => filePatch(path, changes.filter(isDone), cwd)).join("");
}

function isDone({ state }: Change): boolean {
  return state === "done";
}

function filePatch(path: string, changes: readonly Change[], cwd: string | undefined): string {
  const name = nameOf(path, cwd);
  return net(changes)
    .map((change) => onePatch(name, change))
    .join("");
}

interface Net {
  readonly before: string | undefined;
  readonly after: string;
  readonly start: Start | undefined;
}

/**
 * Several changes as one, where one goes on from what the other left: all of the file, or the part that it names.
 *
 * Agents show all of a file, or only the lines around a change. Parts that do not meet stay changes of their own.
 */
export function net(changes: readonly Net[]): readonly Net[] {
  const found: Net[] = [];
  for (const change of changes) {
    const last = found.at(-1);
    const after = last && continued(last.after, change);
    if (last && after !== undefined) found[found.length - 1] = { ...last, after };
    else found.push({ before: change.before, after: change.after, start: change.start });
  }
  return found.filter(({ before, after }) => before !== after);
}

/** What a text becomes by a change of all of it or of a part of it; undefined when the change is of something else. */
function continued(text: string, { before, after }: Net): string | undefined {
  if (before === text) return after;
  // Written anew, without a word of what was there.
  if (before === undefined) return after;
  if (before === "") return undefined;
  const at = text.indexOf(before);
  if (at < 0 || text.indexOf(before, at + 1) >= 0) return undefined;
  return text.slice(0, at) + after + text.slice(at + before.length);
}

function onePatch(name: string, { before, after, start }: Net): string {
  const isNew = before === undefined;
  const hunks = hunksOf(compared(linesOf(before ?? ""), linesOf(after)));
  const head = [
    `diff --git ${quoted(`a/${name}`)} ${quoted(`b/${name}`)}`,
    ...(isNew ? ["new file mode 100644"] : []),
    ...(hunks.length === 0 ? [] : [`--- ${isNew ? "/dev/null" : quoted(`a/${name}`)}`, `+++ ${quoted(`b/${name}`)}`]),
  ];
  const body = hunks.map(({ oldStart, oldLines, newStart, newLines, text }) => {
    if (isNew || before === "") return `@@ -0,${oldLines} +${newStart},${newLines} @@\n${text}`;
    // Git looks for a hunk of line 1 at the beginning alone; one of which nothing says where it is may be anywhere.
    const { old, new: fresh } = start ?? (oldStart === 1 ? ANYWHERE : WHOLE_FILE);
    return `@@ -${oldStart + old - 1},${oldLines} +${newStart + fresh - 1},${newLines} @@\n${text}`;
  });
  return `${[...head, ...body].join("\n")}\n`;
}

const ANYWHERE: Start = { old: 2, new: 2 };

/** The lines of a text; a last one that has no end is another line than one that has. */
function linesOf(text: string): string[] {
  const lines = text.split("\n");
  const last = lines.pop() as string;
  return last === "" ? lines : [...lines, `${last}\n\\ No newline at end of file`];
}

/** Changed lines that are near each other, with what is around them. */
interface Hunk {
  readonly oldStart: number;
  readonly oldLines: number;
  readonly newStart: number;
  readonly newLines: number;
  readonly text: string;
}

const CONTEXT = 3;
const SIGNS = { same: " ", removed: "-", added: "+" } as const;

function hunksOf(lines: readonly Line[]): readonly Hunk[] {
  const hunks: Hunk[] = [];
  let [old, fresh] = [0, 0];
  for (let at = 0; at < lines.length; ) {
    const [from, to] = hunkAt(lines, at);
    for (; at < from; at += 1) [old, fresh] = [old + 1, fresh + 1];
    if (from === to) break;
    const part = lines.slice(from, to);
    const oldLines = part.filter(({ kind }) => kind !== "added").length;
    const newLines = part.filter(({ kind }) => kind !== "removed").length;
    hunks.push({
      oldStart: oldLines === 0 ? old : old + 1,
      oldLines,
      newStart: newLines === 0 ? fresh : fresh + 1,
      newLines,
      text: part.map(({ kind, text }) => SIGNS[kind] + text).join("\n"),
    });
    [at, old, fresh] = [to, old + oldLines, fresh + newLines];
  }
  return hunks;
}

/** Where the first hunk at or after a line begins and ends; both at the end when there is none. */
function hunkAt(lines: readonly Line[], at: number): readonly [number, number] {
  let first = at;
  while (lines[first]?.kind === "same") first += 1;
  if (first === lines.length) return [first, first];
  let last = first;
  // Another one that begins within the lines around this one belongs to it.
  for (let next = first; next < lines.length && next - last <= 2 * CONTEXT; next += 1) {
    if (lines[next]?.kind !== "same") last = next + 1;
  }
  return [Math.max(at, first - CONTEXT), Math.min(lines.length, last + CONTEXT)];
}

/** A path as a patch names it: beneath the directory where it is to be applied, else beneath the root. */
function nameOf(path: string, cwd: string | undefined): string {
  const base = cwd?.endsWith("/") ? cwd : `${cwd ?? ""}/`;
  return path.startsWith(base) ? path.slice(base.length) : path.replace(/^\/+/, "");
}

/** A name as git writes it: in quotes, with bytes in octal, when it has what could be misread. */
function quoted(name: string): string {
  if (/^[!#-[\]-~]*$/.test(name)) return name;
  const written = [...new TextEncoder().encode(name)].map((byte) => {
    if (byte === 0x22 || byte === 0x5c) return `\\${String.fromCharCode(byte)}`;
    return byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : `\\${byte.toString(8).padStart(3, "0")}`;
  });
  return `"${written.join("")}"`;
}
