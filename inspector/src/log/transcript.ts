/**
 * Turns and their items while they are being made: finding one, adding one, changing one (pure).
 *
 * What was given out is never changed. The first change after that makes a copy of its turn, so that a view costs what
 * has changed since the one before it.
 */

import { EventIds, type RpcId } from "./event.js";
import type { Item, Turn } from "./view.js";

/** Where an item is: its turn, and its place in that. */
export type Place = readonly [turn: number, item: number];

/** A turn that may still be changed. */
export type DraftTurn = { -readonly [Member in keyof Turn]: Turn[Member] } & { items: Item[] };

/** Something that has an id and a time. */
export interface Moment {
  readonly id: number;
  readonly at: string;
}

export class Transcript {
  /** Turns as they were given out, and those that were changed since, as drafts. */
  readonly #turns: Turn[];
  readonly #drafts = new Set<number>();
  #given: readonly Turn[];
  #tools: Map<string, Place> | undefined;
  #requests: Map<RpcId, Place> | undefined;

  constructor(turns: readonly Turn[]) {
    this.#turns = [...turns];
    this.#given = turns;
  }

  /** All turns, never to be changed again; the same list as long as nothing has changed. */
  give(): readonly Turn[] {
    if (this.#drafts.size > 0) this.#given = [...this.#turns];
    this.#drafts.clear();
    return this.#given;
  }

  get last(): Turn | undefined {
    return this.#turns.at(-1);
  }

  get lastIndex(): number {
    return this.#turns.length - 1;
  }

  /** When the first thing in it happened. */
  get firstEvent(): number | undefined {
    const first = this.#turns[0];
    return first && (first.items[0]?.events.first ?? first.events.first);
  }

  turn(index: number): Turn | undefined {
    return this.#turns[index];
  }

  item([turn, item]: Place): Item | undefined {
    return this.#turns[turn]?.items[item];
  }

  /** The newest turn of that name, as the server calls it; -1 when there is none. */
  indexOf(turnId: string): number {
    return this.#turns.findLastIndex((turn) => turn.turnId === turnId);
  }

  /** Begins a turn; without facts it is one for what happens outside of turns. */
  begin({ at }: Moment, facts: Partial<Turn> & Pick<Turn, "key">): void {
    const turn: Turn = {
      turnId: undefined,
      promptId: undefined,
      state: "outside",
      startedAt: at,
      neverBegan: false,
      endedAt: undefined,
      stopReason: undefined,
      error: undefined,
      tokens: undefined,
      events: EventIds.of(),
      ...facts,
      items: [...(facts.items ?? [])],
    };
    this.#drafts.add(this.#turns.push(turn) - 1);
  }

  /** A turn, to be changed. */
  draft(index: number): DraftTurn {
    if (!this.#drafts.has(index)) {
      const turn = this.#turns[index] as Turn;
      this.#turns[index] = { ...turn, items: [...turn.items] };
      this.#drafts.add(index);
    }
    return this.#turns[index] as DraftTurn;
  }

  /** The turn that what happens now belongs to, to be changed. */
  current(moment: Moment): DraftTurn {
    const last = this.last;
    // What an agent tells of a past that the server never saw goes on where it was.
    const goesOn = last?.state === "running" || last?.state === "outside" || last?.key.startsWith(HEARD);
    if (!goesOn) this.begin(moment, { key: `outside-${moment.id}` });
    return this.draft(this.lastIndex);
  }

  /** Adds an item to what happens now. */
  push(item: Item, moment: Moment = { id: item.events.first, at: item.at }): void {
    const { items } = this.current(moment);
    const place: Place = [this.lastIndex, items.length];
    if (item.type === "tool") this.#toolPlaces().set(item.toolCallId, place);
    if (item.type === "asked") this.#requestPlaces().set(item.requestId, place);
    items.push(item);
  }

  /** Changes an item because of an event; returns it as it is then. */
  change<Kind extends Item>([turn, index]: Place, change: (item: Kind) => Partial<Kind>, event?: number): Kind {
    const { items } = this.draft(turn);
    const before = items[index] as Kind;
    const events = event === undefined ? before.events : before.events.with(event);
    const after = { ...before, ...change(before), events };
    items[index] = after;
    return after;
  }

  /** Where an item is, by its key. */
  find(key: string): Place | undefined {
    for (let turn = this.lastIndex; turn >= 0; turn -= 1) {
      const item = (this.#turns[turn] as Turn).items.findLastIndex((each) => each.key === key);
      if (item >= 0) return [turn, item];
    }
    return undefined;
  }

  toolCall(toolCallId: string): Place | undefined {
    return this.#toolPlaces().get(toolCallId);
  }

  /** The newest request of an id: agents that are started again begin to count anew. */
  request(requestId: RpcId): Place | undefined {
    return this.#requestPlaces().get(requestId);
  }

  #toolPlaces(): Map<string, Place> {
    return (this.#tools ??= new Map(this.#all((item) => (item.type === "tool" ? item.toolCallId : undefined))));
  }

  #requestPlaces(): Map<RpcId, Place> {
    return (this.#requests ??= new Map(this.#all((item) => (item.type === "asked" ? item.requestId : undefined))));
  }

  *#all<Name>(name: (item: Item) => Name | undefined): Generator<[Name, Place]> {
    for (const [turn, { items }] of this.#turns.entries()) {
      for (const [index, item] of items.entries()) {
        const found = name(item);
        if (found !== undefined) yield [found, [turn, index]];
      }
    }
  }
}

/** How keys of turns begin that are known from an agent's own memory. */
export const HEARD = "heard-";
