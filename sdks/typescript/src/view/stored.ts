/** Restores a view from stored JSON (pure). */

import { EventIds, type EventRange } from "./event-ids.js";
import type { SessionView, TurnView } from "./session-view.js";

/** A view with ids of events that can grow; of a view that a reducer made, the view itself. */
export function revived(view: SessionView): SessionView {
  const some = view.turns[0] ?? view.writes[0] ?? Object.values(view.terminals)[0];
  if (some === undefined || some.events instanceof EventIds) return view;
  const turns = view.turns.map(turnOf);
  const items = new Map(turns.flatMap((turn) => turn.items.map((item) => [item.key, item] as const)));
  return {
    ...view,
    turns,
    pending: view.pending.map((request) => (items.get(request.key) ?? withIds(request)) as typeof request),
    writes: view.writes.map(withIds),
    terminals: Object.fromEntries(Object.entries(view.terminals).map(([id, terminal]) => [id, withIds(terminal)])),
  };
}

function turnOf(turn: TurnView): TurnView {
  return { ...withIds(turn), items: turn.items.map(withIds) };
}

function withIds<Value extends { readonly events: EventRange }>(value: Value): Value & { readonly events: EventIds } {
  return { ...value, events: EventIds.from(value.events) };
}
