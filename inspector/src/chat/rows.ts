/** The rows of a transcript: the items of all turns, and a line at the end of each turn. */

import type { SessionView, TurnView, ViewItem } from "sandboxagent";


export type Row =
  | {
      readonly kind: "item";
      readonly key: string;
      readonly item: ViewItem;
      readonly turn: TurnView;
      readonly streaming: boolean;
    }
  | { readonly kind: "end"; readonly key: string; readonly turn: TurnView }
  | { readonly kind: "working"; readonly key: string; readonly turn: TurnView };

/** Turns never change; what they become is another turn. So each is turned into rows once. */
const known = new WeakMap<TurnView, readonly Row[]>();

export function rowsOf(view: SessionView): readonly Row[] {
  return view.turns.flatMap((turn) => {
    let rows = known.get(turn);
    if (rows === undefined) {
      rows = rowsOfTurn(turn);
      known.set(turn, rows);
    }
    return rows;
  });
}

/** Which row came from an event; -1 when none did. */
export function rowOfEvent(rows: readonly Row[], event: number): number {
  let best = -1;
  for (const [index, row] of rows.entries()) {
    if (row.kind !== "item") continue;
    if (row.item.events.has(event)) return index;
    if (row.item.events.first <= event) best = index;
  }
  return best;
}

function rowsOfTurn(turn: TurnView): Row[] {
  const running = turn.state === "running";
  const rows: Row[] = turn.items.map((item, index) => ({
    kind: "item",
    key: item.key,
    item,
    turn,
    streaming: running && index === turn.items.length - 1,
  }));
  if (running) rows.push({ kind: "working", key: `${turn.key}:end`, turn });
  else if (turn.state !== "outside") rows.push({ kind: "end", key: `${turn.key}:end`, turn });
  return rows;
}
