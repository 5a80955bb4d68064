/** What agents do, as items: tool calls, terminals, tokens (pure). */

import type {
  ContentBlock,
  ToolCallContent,
  ToolCallLocation,
  ToolCallStatus,
  ToolKind,
} from "@agentclientprotocol/sdk";

import { EventIds } from "./event.js";
import { type Json, listAt, numberAt, objectAt, objectOf, textAt } from "./reading.js";
import type { Failure, OpenCall, Terminal, Tokens, ToolCall } from "./view.js";

/** A tool call that nothing is known of but its id. */
export function newToolCall(toolCallId: string, event: number, at: string): ToolCall {
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
    askedKey: undefined,
  };
}

/** What an update changes in a tool call: what it leaves out, or has as null, stays. */
export function toolChange(call: ToolCall, update: Json, at: string, askedKey: string | undefined): Partial<ToolCall> {
  const status = textAt(update, "status") as ToolCallStatus | undefined;
  const isOver = status === "completed" || status === "failed";
  const meta = update["_meta"];
  return {
    title: textAt(update, "title") ?? call.title,
    kind: (textAt(update, "kind") as ToolKind | undefined) ?? call.kind,
    status: status ?? call.status,
    content: listAt<ToolCallContent>(update, "content") ?? call.content,
    locations: listAt<ToolCallLocation>(update, "locations") ?? call.locations,
    rawInput: update["rawInput"] ?? call.rawInput,
    rawOutput: update["rawOutput"] ?? call.rawOutput,
    meta: typeof meta === "object" && meta !== null ? { ...call.meta, ...meta } : call.meta,
    endedAt: isOver ? (call.endedAt ?? at) : status === undefined ? call.endedAt : undefined,
    askedKey: askedKey ?? call.askedKey,
  };
}

/** A terminal that was just made. */
export function newTerminal(terminalId: string, call: OpenCall): Terminal {
  const made = call.method === "terminal/create" ? call.params : {};
  return {
    terminalId,
    command: textAt(made, "command") ?? "",
    args: listAt<string>(made, "args") ?? [],
    cwd: textAt(made, "cwd"),
    output: "",
    truncated: false,
    exit: undefined,
    released: false,
    events: EventIds.of(call.event),
  };
}

/** What an answer says of a terminal. */
export function terminalChange(method: string, result: Json): Partial<Terminal> {
  switch (method) {
    case "terminal/output": {
      const status = result["exitStatus"];
      return {
        output: textAt(result, "output") ?? "",
        truncated: result["truncated"] === true,
        ...(typeof status === "object" && status !== null && { exit: exitOf(objectOf(status)) }),
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

/** How much of a terminal's output is kept, from its end. */
const MAX_OUTPUT = 1024 * 1024;

/**
 * A terminal of an agent's own, after an update of a tool call that says something of it; undefined when it does not.
 *
 * Some agents run commands themselves, and tell in `_meta` where (`terminal_info`), what was written since the last time
 * (`terminal_output`) and how it ended (`terminal_exit`).
 */
export function ownTerminal(
  terminals: Readonly<Record<string, Terminal>>,
  update: Json,
  event: number,
): Terminal | undefined {
  const meta = objectAt(update, "_meta");
  const parts = ["terminal_info", "terminal_output", "terminal_exit"].map((name) => objectAt(meta, name));
  const [info = {}, output = {}, exit = {}] = parts;
  const terminalId = parts.map((part) => textAt(part, "terminal_id")).find((id) => id !== undefined);
  if (terminalId === undefined) return undefined;
  const known = terminals[terminalId] ?? {
    terminalId, command: "", args: [], cwd: undefined, output: "", truncated: false, exit: undefined, released: false,
    events: EventIds.of(),
  };
  const written = known.output + (textAt(output, "data") ?? "");
  const isExit = Object.hasOwn(exit, "terminal_id");
  return {
    ...known,
    cwd: textAt(info, "cwd") ?? known.cwd,
    output: written.slice(-MAX_OUTPUT),
    truncated: known.truncated || written.length > MAX_OUTPUT,
    exit: isExit ? { exitCode: numberAt(exit, "exit_code") ?? null, signal: textAt(exit, "signal") ?? null } : known.exit,
    events: known.events.with(event),
  };
}

function exitOf(status: Json): Terminal["exit"] {
  return { exitCode: numberAt(status, "exitCode") ?? null, signal: textAt(status, "signal") ?? null };
}

/** What an error says of what went wrong. */
export function failureFacts(error: Json): Partial<Failure> {
  const data = objectAt(error, "data");
  const [code, exitCode, signal] = [numberAt(error, "code"), numberAt(data, "exitCode"), textAt(data, "signal")];
  return {
    ...(code !== undefined && { code }),
    ...(exitCode !== undefined && { exitCode }),
    ...(signal !== undefined && { signal }),
    ...(data["stderr"] !== undefined && { stderr: data["stderr"] as Failure["stderr"] }),
    ...(error["data"] !== undefined && { data: error["data"] }),
  };
}

/** The tokens of a turn; undefined when its agent does not count them. */
export function tokensOf(usage: Json): Tokens | undefined {
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

export function sumOf(one: Tokens | undefined, other: Tokens): Tokens {
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
  if (last?.type !== "text" || block.type !== "text") return [...blocks, block];
  return [...blocks.slice(0, -1), { ...last, text: last.text + block.text }];
}
