/** What a scrubber shows of a session's past: its turns, and moments worth going to (pure). */

import type { SessionView, TurnView } from "sandboxagent";
import type { SessionLog } from "../log/session-log.js";

/** A turn, from one place in the log to another. */
export interface Stretch {
  readonly key: string;
  readonly from: number;
  readonly to: number;
  readonly state: TurnView["state"];
  /** What was asked for. */
  readonly title: string;
}

/** A moment that stands out. */
export interface Mark {
  readonly key: string;
  readonly at: number;
  readonly kind: "request" | "failed" | "changed" | "missing";
}

/** Marks of one turn never change once it has ended; so they are made once. */
const known = new WeakMap<TurnView, { stretch: Omit<Stretch, "to">; marks: readonly Mark[]; last: number }>();

export function pastOf(view: SessionView, log: SessionLog): { stretches: readonly Stretch[]; marks: readonly Mark[] } {
  const stretches: Stretch[] = [];
  const marks: Mark[] = [];
  for (const turn of view.turns) {
    const made = known.get(turn) ?? turnPast(turn, log);
    known.set(turn, made);
    stretches.push({ ...made.stretch, to: Math.max(made.last, made.stretch.from + 1) });
    marks.push(...made.marks);
  }
  return { stretches, marks };
}

function turnPast(turn: TurnView, log: SessionLog): { stretch: Omit<Stretch, "to">; marks: readonly Mark[]; last: number } {
  const marks: Mark[] = [];
  let first = turn.events.count > 0 ? turn.events.first : Infinity;
  let last = turn.events.last;
  for (const item of turn.items) {
    if (item.events.count === 0) {
      if (item.type === "gap") marks.push({ key: item.key, at: log.countAt(item.after), kind: "missing" });
      continue;
    }
    first = Math.min(first, item.events.first);
    last = Math.max(last, item.events.last);
    const at = log.countAt(item.events.first);
    if (item.type === "request") marks.push({ key: item.key, at, kind: "request" });
    else if (item.type === "failure") marks.push({ key: item.key, at, kind: "failed" });
    else if (item.type === "tool" && item.content.some(({ type }) => type === "diff")) {
      marks.push({ key: item.key, at, kind: "changed" });
    }
  }
  const from = Number.isFinite(first) ? log.countAt(first) - 1 : 0;
  const stretch = { key: turn.key, from, state: turn.state, title: titleOf(turn) };
  return { stretch, marks, last: log.countAt(last) };
}

function titleOf(turn: TurnView): string {
  const asked = turn.items.find(({ type }) => type === "user");
  if (asked?.type !== "user") return turn.state === "outside" ? "Between turns" : "A turn";
  const text = asked.blocks.map((block) => (block.type === "text" ? block.text : "")).join(" ");
  return text.trim().replace(/\s+/g, " ").slice(0, 80);
}
