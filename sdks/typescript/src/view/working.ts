/** Reads tool calls, terminals, failures and tokens (pure). */

import type {
  ContentBlock,
  ToolCallContent,
  ToolCallLocation,
  ToolCallStatus,
  ToolKind,
} from "@agentclientprotocol/sdk";

import { EventIds } from "./event-ids.js";
import { type Json, isObject, listAt, numberAt, objectAt, objectsAt, textAt } from "./json.js";
import type { FailureItem, OpenCall, TerminalView, TokenCounts, ToolCallItem } from "./session-view.js";

/** A tool call of which nothing is known but its id. */
export function newToolCall(toolCallId: string, event: number, at: string): ToolCallItem {
  return {
    type: "tool",
    key: `tool-${event}`,
    at,
    events: EventIds.of(event),
    toolCallId,
    title: "",
    kind: "other",
    status: "pending",
    content: [],
    locations: [],
    rawInput: undefined,
    rawOutput: undefined,
    meta: undefined,
    endedAt: undefined,
    requestKey: undefined,
  };
}

/** The tool call after an update. Members that the update leaves out, or has as null, stay. */
export function toolChange(
  call: ToolCallItem,
  update: Json,
  at: string,
  requestKey: string | undefined,
): Partial<ToolCallItem> {
  const status = closed(STATUSES, textAt(update, "status"));
  const isOver = status === "completed" || status === "failed";
  const meta = objectAt(update, "_meta");
  return {
    title: textAt(update, "title") ?? call.title,
    kind: closed(KINDS, textAt(update, "kind")) ?? call.kind,
    status: status ?? call.status,
    content: objectsAt<ToolCallContent>(update, "content") ?? call.content,
    locations: objectsAt<ToolCallLocation>(update, "locations") ?? call.locations,
    rawInput: update["rawInput"] ?? call.rawInput,
    rawOutput: update["rawOutput"] ?? call.rawOutput,
    meta: Object.keys(meta).length > 0 ? { ...call.meta, ...meta } : call.meta,
    endedAt: isOver ? (call.endedAt ?? at) : status === undefined ? call.endedAt : undefined,
    requestKey: requestKey ?? call.requestKey,
  };
}

/** A terminal of which nothing is known but the request that named it. */
export function newTerminal(terminalId: string, call?: OpenCall): TerminalView {
  const made = call?.method === "terminal/create" ? call.params : {};
  return {
    terminalId,
    command: textAt(made, "command") ?? "",
    args: (listAt(made, "args") ?? []).filter((each) => typeof each === "string"),
    cwd: textAt(made, "cwd"),
    output: "",
    truncated: false,
    exit: undefined,
    released: false,
    events: call ? EventIds.of(call.event) : EventIds.of(),
  };
}

/** The terminal after an answer. */
export function terminalChange(method: string, result: Json): Partial<TerminalView> {
  switch (method) {
    case "terminal/output": {
      const status = result["exitStatus"];
      return {
        output: textAt(result, "output") ?? "",
        truncated: result["truncated"] === true,
        ...(isObject(status) && { exit: exitOf(status) }),
      };
    }
    case "terminal/wait_for_exit":
      return { exit: exitOf(result) };
    case "terminal/release":
      return { released: true };
    default:
      return {};
  }
}

/** How much of a terminal's output is kept, from its end, in UTF-16 code units. */
const MAX_OUTPUT = 1024 * 1024;

/**
 * A terminal of an agent's own, after an update of a tool call that says something of it; undefined when it does not.
 *
 * Some agents run commands themselves. They say in `_meta` where (`terminal_info`), the new output (`terminal_output`),
 * and how it ended (`terminal_exit`).
 */
export function ownTerminal(
  terminals: Readonly<Record<string, TerminalView>>,
  update: Json,
  event: number,
): TerminalView | undefined {
  const meta = objectAt(update, "_meta");
  const parts = ["terminal_info", "terminal_output", "terminal_exit"].map((name) => objectAt(meta, name));
  const [info = {}, output = {}, exit = {}] = parts;
  const terminalId = parts.map((part) => textAt(part, "terminal_id")).find((id) => id !== undefined);
  if (terminalId === undefined) return undefined;
  const known = (Object.hasOwn(terminals, terminalId) ? terminals[terminalId] : undefined) ?? {
    ...newTerminal(terminalId),
  };
  const written = known.output + (textAt(output, "data") ?? "");
  const isExit = Object.hasOwn(exit, "terminal_id");
  return {
    ...known,
    cwd: textAt(info, "cwd") ?? known.cwd,
    output: endOf(written),
    truncated: known.truncated || written.length > MAX_OUTPUT,
    exit: isExit ? { exitCode: numberAt(exit, "exit_code"), signal: textAt(exit, "signal") } : known.exit,
    events: known.events.with(event),
  };
}

function endOf(written: string): string {
  const end = written.slice(-MAX_OUTPUT);
  // A cut may have left half of a character.
  return written.length > MAX_OUTPUT && /^[\uDC00-\uDFFF]/.test(end) ? end.slice(1) : end;
}

function exitOf(status: Json): TerminalView["exit"] {
  return { exitCode: numberAt(status, "exitCode"), signal: textAt(status, "signal") };
}

/** The message of an error. */
export function failureFacts(error: Json): Partial<FailureItem> {
  const data = objectAt(error, "data");
  const [code, exitCode, signal] = [numberAt(error, "code"), numberAt(data, "exitCode"), textAt(data, "signal")];
  return {
    ...(code !== undefined && { code }),
    ...(exitCode !== undefined && { exitCode }),
    ...(signal !== undefined && { signal }),
    ...(isObject(data["stderr"]) && { stderr: data["stderr"] as unknown as FailureItem["stderr"] }),
    ...(error["data"] != null && { data: error["data"] }),
  };
}

/** The tokens of a turn; undefined when its agent does not count them. */
export function tokensOf(usage: Json): TokenCounts | undefined {
  const total = numberAt(usage, "totalTokens");
  if (total === undefined) return undefined;
  return {
    total,
    input: numberAt(usage, "inputTokens") ?? 0,
    output: numberAt(usage, "outputTokens") ?? 0,
    thought: numberAt(usage, "thoughtTokens"),
    cacheRead: numberAt(usage, "cachedReadTokens"),
    cacheWrite: numberAt(usage, "cachedWriteTokens"),
  };
}

/** The tokens of two turns together. */
export function sumOf(one: TokenCounts | undefined, other: TokenCounts): TokenCounts {
  if (one === undefined) return other;
  const both = (a: number | undefined, b: number | undefined): number | undefined =>
    a === undefined ? b : b === undefined ? a : a + b;
  return {
    total: one.total + other.total,
    input: one.input + other.input,
    output: one.output + other.output,
    thought: both(one.thought, other.thought),
    cacheRead: both(one.cacheRead, other.cacheRead),
    cacheWrite: both(one.cacheWrite, other.cacheWrite),
  };
}

/** Blocks and one more; text goes on where text ended. */
export function joined(blocks: readonly ContentBlock[], block: ContentBlock): readonly ContentBlock[] {
  const last = blocks.at(-1);
  if (last === undefined || !isText(last) || !isText(block)) return [...blocks, block];
  return [...blocks.slice(0, -1), { ...last, text: last.text + block.text }];
}

/** Whether a block is a text. */
export function isText(block: ContentBlock): block is ContentBlock & { readonly type: "text"; readonly text: string } {
  return block.type === "text" && typeof block.text === "string";
}

function closed<Value extends string>(values: ReadonlySet<Value>, value: string | undefined): Value | undefined {
  return values.has(value as Value) ? (value as Value) : undefined;
}

const STATUSES: ReadonlySet<ToolCallStatus> = new Set(["pending", "in_progress", "completed", "failed"] as const);
const KINDS: ReadonlySet<ToolKind> = new Set([
  "read",
  "edit",
  "delete",
  "move",
  "search",
  "execute",
  "think",
  "fetch",
  "switch_mode",
  "other",
] as const);
