/**
 * The file's own numbers of the lines that a change shows, as far as its agent says where it is (pure).
 *
 * Some agents show all of a file (Gemini CLI), others the lines around a change (Claude Code, Codex), and ACP has no
 * word for which. So a change has numbers in four cases: the file is new, the agent marks it as a whole file, it names
 * the line of each part (Claude Code), or it has the change as a patch with line numbers beside it (OpenCode, Qwen
 * Code). In all other cases there is no number, rather than a false one.
 */

import type { ToolCallContent, ToolCallLocation } from "@agentclientprotocol/sdk";
import { parsePatch } from "diff";

import { objectAt, objectOf } from "../log/reading.js";
import { type Line, linesOf } from "./changes.js";

/** The file's number of the first line that is shown, before and after the change. */
export interface Start {
  readonly old: number;
  readonly new: number;
}

export const WHOLE_FILE: Start = { old: 1, new: 1 };

/** `_meta.kind` of a change that shows the whole file: Gemini CLI has all three, Codex the first two. */
const WHOLE_KINDS: ReadonlySet<unknown> = new Set(["add", "delete", "modify"]);

type Shown = Extract<ToolCallContent, { type: "diff" }>;

/**
 * Where each change of a tool call begins in its file, in the order of the call's content; undefined where nothing says
 * it. `raw` is what the call was given and gave, in the agent's own form.
 */
export function startsOf(
  content: readonly ToolCallContent[],
  locations: readonly ToolCallLocation[],
  raw: readonly unknown[] = [],
): readonly (Start | undefined)[] {
  const parts = new Map<string, Shown[]>();
  for (const each of content) if (each?.type === "diff") parts.set(each.path, [...(parts.get(each.path) ?? []), each]);
  const starts = new Map<Shown, Start>();
  for (const [path, shown] of parts) {
    // Part by part, in their order: Claude Code says it so.
    const lines = locations.flatMap((each) => (each?.path === path && isNumber(each.line) ? [each.line] : []));
    for (const [index, part] of shown.entries()) {
      const told = lines.length === shown.length ? startOf(shown, lines, index) : startInPatch(part, raw);
      const start = isWhole(part) ? WHOLE_FILE : told;
      if (start) starts.set(part, start);
    }
  }
  return content.map((each) => (each?.type === "diff" ? starts.get(each) : undefined));
}

/** Agents name the line after the change; parts above it have moved it there. */
function startOf(parts: readonly Shown[], lines: readonly number[], index: number): Start {
  const line = lines[index] as number;
  const moved = parts
    .filter((_, other) => (lines[other] as number) < line)
    .reduce((sum, part) => sum + countOf(part.newText) - countOf(part.oldText ?? ""), 0);
  return { old: Math.max(1, line - moved), new: line };
}

function isWhole({ oldText, _meta }: Shown): boolean {
  return oldText == null || WHOLE_KINDS.has(_meta?.["kind"]);
}

function isNumber(line: number | null | undefined): line is number {
  return typeof line === "number" && Number.isSafeInteger(line) && line > 0;
}

function countOf(text: string): number {
  return text === "" ? 0 : text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
}

/** Lines that go and come at one place. */
interface Run {
  readonly old: number;
  readonly new: number;
  readonly text: string;
}

/** Names under which agents keep a patch. */
const PATCHES = ["diff", "patch", "fileDiff"];
/** Characters of a patch that is read. */
const LONGEST = 1_000_000;

/** Where a change begins by a patch of it: where all that it changes is, and nowhere else. */
function startInPatch({ path, oldText, newText }: Shown, raw: readonly unknown[]): Start | undefined {
  const patched = raw.map((value) => runsOfPatch(path, value)).find((found) => found.length > 0);
  if (patched === undefined) return undefined;
  const shown = runsOf(linesOf(oldText ?? undefined, newText));
  const [first] = shown;
  if (first === undefined) return undefined;
  const there = new Set(patched.map(keyOf));
  const starts = patched
    .filter(({ text }) => text === first.text)
    .map((run) => ({ old: run.old - first.old + 1, new: run.new - first.new + 1 }))
    .filter((start) => start.old > 0 && start.new > 0)
    .filter((start) =>
      shown.every((run) => there.has(keyOf({ ...run, old: run.old + start.old - 1, new: run.new + start.new - 1 }))),
    );
  return starts.length === 1 ? starts[0] : undefined;
}

function keyOf({ old, new: fresh, text }: Run): string {
  return `${old} ${fresh} ${text}`;
}

function runsOfPatch(path: string, value: unknown): readonly Run[] {
  const facts = objectOf(value);
  const texts = [facts, objectAt(facts, "metadata")].flatMap((each) => PATCHES.map((name) => each[name]));
  const text = texts.find((each) => typeof each === "string" && each.includes("@@ "));
  if (typeof text !== "string" || text.length > LONGEST) return [];
  try {
    return parsePatch(text)
      .filter(({ newFileName = "" }) => path === newFileName || path.endsWith(`/${newFileName}`))
      .flatMap(({ hunks }) => hunks)
      .flatMap(({ oldStart, newStart, lines }) => runsOf(linesOfHunk(lines, oldStart, newStart), { old: oldStart, new: newStart }));
  } catch {
    return [];
  }
}

const KINDS: Readonly<Record<string, Line["kind"]>> = { " ": "same", "-": "removed", "+": "added" };

function linesOfHunk(lines: readonly string[], oldStart: number, newStart: number): readonly Line[] {
  let [old, fresh] = [oldStart, newStart];
  return lines.flatMap((line): Line[] => {
    const [kind, text] = [KINDS[line[0] ?? " "], line.slice(1)];
    if (kind === undefined) return [];
    return [{ kind, text, old: kind === "added" ? undefined : old++, new: kind === "removed" ? undefined : fresh++ }];
  });
}

/** The places where lines go or come, with the numbers that the first of them has, or would have. */
function runsOf(lines: readonly Line[], start = WHOLE_FILE): readonly Run[] {
  const runs: { old: number; new: number; text: string }[] = [];
  let { old, new: fresh } = start;
  let open = false;
  for (const line of lines) {
    if (line.kind === "same") open = false;
    else if (open) (runs.at(-1) as { text: string }).text += `\n${line.kind} ${line.text}`;
    else {
      runs.push({ old, new: fresh, text: `${line.kind} ${line.text}` });
      open = true;
    }
    if (line.kind !== "added") old = (line.old as number) + 1;
    if (line.kind !== "removed") fresh = (line.new as number) + 1;
  }
  return runs;
}
