/** Everything that a session did to files: per change, per file, per turn; with what was asked and who allowed it (pure). */

import type { FileWrite, RequestDecision, RequestItem, SessionView, ToolCallItem, TurnView } from "sandboxagent";

import { isRefused } from "../waiting/outcome.js";
import { type Start, WHOLE_FILE, startsOf } from "../text/numbering.js";

/** How far a change has come. */
export type ChangeState = "done" | "proposed" | "rejected" | "failed" | "unfinished";

/** One change of one file. */
export interface Change {
  /** Unique in its session. */
  readonly key: string;
  readonly path: string;
  /** Undefined for a file that was not there, or of which nothing is known. */
  readonly before: string | undefined;
  readonly after: string;
  readonly state: ChangeState;
  readonly turnKey: string;
  /** What was asked for in its turn. */
  readonly prompt: string;
  /** Which of the session's turns, from 1. */
  readonly turnNumber: number;
  /** What the agent calls it. */
  readonly title: string;
  readonly at: string;
  /** The event that shows it first. */
  readonly event: number;
  /** The request for permission; undefined when none was asked for. */
  readonly requestKey: string | undefined;
  /** How permission was given or refused. */
  readonly decision: RequestDecision | undefined;
  /** Where it begins in the file, when that is known. */
  readonly start: Start | undefined;
}

/** All changes of one file, oldest first. */
export interface ChangedFile {
  readonly path: string;
  readonly changes: readonly Change[];
}

/** All changes of one turn, oldest first. */
export interface ChangedTurn {
  readonly key: string;
  readonly prompt: string;
  readonly number: number;
  readonly at: string;
  readonly changes: readonly Change[];
}

export interface Review {
  readonly changes: readonly Change[];
  readonly files: readonly ChangedFile[];
  readonly turns: readonly ChangedTurn[];
}

/** What was changed up to a moment. */
export function reviewOf(view: SessionView): Review {
  const changes: Change[] = [];
  const turns: ChangedTurn[] = [];
  let number = 0;
  for (const turn of view.turns) {
    if (turn.state !== "outside") number += 1;
    const writes = view.writes.filter(({ turnKey }) => turnKey === turn.key);
    const found = changesOf(turn, writes);
    if (found.length === 0) continue;
    const turnNumber = Math.max(1, number);
    const numbered = found.map((change) => ({ ...change, turnNumber }));
    changes.push(...numbered);
    turns.push({ key: turn.key, prompt: promptOf(turn), number: turnNumber, at: turn.startedAt, changes: numbered });
  }
  const files = grouped(changes);
  return { changes, turns, files: [...files].map(([path, of]) => ({ path, changes: of })) };
}

function changesOf(turn: TurnView, writes: readonly FileWrite[]): Omit<Change, "turnNumber">[] {
  const known = memory.get(turn);
  if (known && known.writes.length === writes.length && known.writes.every((each, index) => each === writes[index])) {
    return known.changes;
  }
  const changes = [...ofTools(turn, writes), ...ofWrites(turn, writes)].sort((one, other) => one.event - other.event);
  memory.set(turn, { writes, changes });
  return changes;
}

/** A turn that has not changed has the same changes. */
const memory = new WeakMap<TurnView, { writes: readonly FileWrite[]; changes: Omit<Change, "turnNumber">[] }>();

function* ofTools(turn: TurnView, writes: readonly FileWrite[]): Generator<Omit<Change, "turnNumber">> {
  const asked = new Map(turn.items.flatMap((item) => (item.type === "request" ? [[item.key, item] as const] : [])));
  for (const item of turn.items) {
    if (item.type !== "tool") continue;
    const starts = startsOf(item.content, item.locations, [item.rawInput, item.rawOutput]);
    const request = item.requestKey === undefined ? undefined : asked.get(item.requestKey);
    for (const [index, content] of item.content.entries()) {
      if (content.type !== "diff" || typeof content.path !== "string" || typeof content.newText !== "string") continue;
      yield {
        key: `${item.key}-${index}`,
        path: content.path,
        before: content.oldText ?? undefined,
        after: content.newText,
        state: stateOf(item, request, turn),
        turnKey: turn.key,
        prompt: promptOf(turn),
        title: item.title,
        at: item.at,
        event: item.events.first,
        requestKey: request?.key,
        decision: request?.decision,
        // What the server wrote is the whole file.
        start: writes.some((write) => isSame(write, content)) ? WHOLE_FILE : starts[index],
      };
    }
  }
}

function isSame(write: FileWrite, shown: { readonly path: string; readonly newText: string }): boolean {
  return write.path === shown.path && write.newText === shown.newText;
}

/** What the server wrote for the agent, unless a tool call shows the same. */
function* ofWrites(turn: TurnView, writes: readonly FileWrite[]): Generator<Omit<Change, "turnNumber">> {
  const shown = new Set(
    turn.items.flatMap((item) =>
      item.type === "tool" ? item.content.flatMap((each) => (each.type === "diff" ? [`${each.path}\0${each.newText}`] : [])) : [],
    ),
  );
  for (const write of writes) {
    if (shown.has(`${write.path}\0${write.newText}`)) continue;
    yield {
      key: `write-${write.events.first}`,
      path: write.path,
      before: write.oldText,
      after: write.newText,
      state: write.done === undefined ? "proposed" : write.done ? "done" : "failed",
      turnKey: turn.key,
      prompt: promptOf(turn),
      title: "Written by the server for the agent",
      at: write.at,
      event: write.events.first,
      requestKey: undefined,
      decision: undefined,
      start: WHOLE_FILE,
    };
  }
}

function stateOf(call: ToolCallItem, asked: RequestItem | undefined, turn: TurnView): ChangeState {
  if (asked?.decision && isRefused(asked.decision)) return "rejected";
  if (call.status === "completed") return "done";
  if (call.status === "failed") return "failed";
  return turn.state === "running" ? "proposed" : "unfinished";
}

export function promptOf(turn: TurnView): string {
  const said = turn.items.find(({ type }) => type === "user");
  if (said?.type !== "user") return "";
  return said.blocks.map((block) => (block.type === "text" ? block.text : "")).join(" ").trim();
}

function grouped(changes: readonly Change[]): Map<string, Change[]> {
  const files = new Map<string, Change[]>();
  for (const change of changes) files.set(change.path, [...(files.get(change.path) ?? []), change]);
  return files;
}

/** Who decided, in words. */
export function deciderOf(decision: RequestDecision): string {
  const { by } = decision;
  const word = (name: string): string | undefined => (typeof by?.[name] === "string" ? String(by[name]) : undefined);
  switch (by?.kind) {
    case "client":
      return word("user") ?? word("client") ?? word("name") ?? "a client";
    case "rule":
      return `rule ${word("name") ?? `${String(by["rule"])} of the ${word("source") ?? "server"}`}`;
    case "timeout":
      return "no answer in time";
    case "limit":
      return "the server, because the rules took too long";
    case "cancel":
      return "the end of the turn";
    case "agent":
      return "the agent, which took it back";
    default:
      return "a client";
  }
}
