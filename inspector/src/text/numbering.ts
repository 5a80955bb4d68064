/**
 * The file's own numbers of the lines that a change shows, as far as its agent says where it is (pure).
 *
 * Some agents show all of a file (Gemini CLI), others the lines around a change (Claude Code, Codex), and ACP has no
 * word for which. So a change has numbers in three cases: the file is new, the agent marks it as a whole file, or it
 * names the line of each part. In all other cases there is no number, rather than a false one.
 */

import type { ToolCallContent, ToolCallLocation } from "@agentclientprotocol/sdk";

/** The file's number of the first line that is shown, before and after the change. */
export interface Start {
  readonly old: number;
  readonly new: number;
}

export const WHOLE_FILE: Start = { old: 1, new: 1 };

/** `_meta.kind` of a change that shows the whole file: Gemini CLI has all three, Codex the first two. */
const WHOLE_KINDS: ReadonlySet<unknown> = new Set(["add", "delete", "modify"]);

type Shown = Extract<ToolCallContent, { type: "diff" }>;

/** Where each change of a tool call begins in its file, in the order of the call's content; undefined where nothing says it. */
export function startsOf(
  content: readonly ToolCallContent[],
  locations: readonly ToolCallLocation[],
): readonly (Start | undefined)[] {
  const parts = new Map<string, Shown[]>();
  for (const each of content) if (each?.type === "diff") parts.set(each.path, [...(parts.get(each.path) ?? []), each]);
  const starts = new Map<Shown, Start>();
  for (const [path, shown] of parts) {
    // Part by part, in their order: Claude Code says it so.
    const lines = locations.flatMap((each) => (each?.path === path && isNumber(each.line) ? [each.line] : []));
    for (const [index, part] of shown.entries()) {
      if (isWhole(part)) starts.set(part, WHOLE_FILE);
      else if (lines.length === shown.length) starts.set(part, startOf(shown, lines, index));
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
