/** From an event to what a person sees of it, and back (pure). */

import type { SessionView, TurnView, ViewItem } from "sandboxagent";


/** An item and the turn that it is in. */
export interface Found {
  readonly turn: TurnView;
  readonly item: ViewItem | undefined;
}

/**
 * What shows an event: the item that it is a part of. An event of the turn itself leads to the turn; any other, such as
 * one that changes a mode, to what was last shown before it.
 */
export function showing(view: SessionView, event: number): Found | undefined {
  let nearest: Found | undefined;
  for (let index = view.turns.length - 1; index >= 0; index -= 1) {
    const turn = view.turns[index] as TurnView;
    const item = turn.items.find(({ events }) => events.has(event));
    if (item) return { turn, item };
    const before = turn.items.findLast(({ events }) => events.count > 0 && events.first <= event);
    if (turn.events.has(event)) return { turn, item: before };
    if (nearest === undefined && before) nearest = { turn, item: before };
  }
  return nearest;
}
