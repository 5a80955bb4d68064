/**
 * Finds, adds and changes turns and their items while a view is made (pure).
 *
 * A published view is never changed. The first change after that makes a copy of its turn, so that a view costs what
 * has changed since the one before it.
 */

import { EventIds } from "./event-ids.js";
import type { TurnView, ViewItem } from "./session-view.js";

type RpcId = string | number;

/** Where an item is: its turn, and its place in that. */
export type Place = readonly [turn: number, item: number];

/** A turn that may still be changed. */
export type DraftTurn = { -readonly [Member in keyof TurnView]: TurnView[Member] } & { items: ViewItem[] };

/** Something that has an id and a time. */
export interface Moment {
  readonly id: number;
  readonly at: string;
}

/** The turns of a session, which grow and change. */
export class Transcript {
  /** Turns that were given out, and drafts of those that have changed since. */
  readonly #turns: TurnView[];
  readonly #drafts = new Set<number>();
  #given: readonly TurnView[];
  #tools: Map<string, Place> | undefined;
  #requests: Map<RpcId, Place> | undefined;

  constructor(turns: readonly TurnView[]) {
    this.#turns = [...turns];
    this.#given = turns;
  }

  /** All turns, never to be changed again; the same list as long as nothing has changed. */
  give(): readonly TurnView[] {
    if (this.#drafts.size > 0) this.#given = [...this.#turns];
    this.#drafts.clear();
    return this.#given;
  }

  /** The turn that goes on: the newest one, but for prompts that were withdrawn while it ran. */
  get current(): TurnView | undefined {
    return this.#turns[this.currentIndex];
  }

  get currentIndex(): number {
    let index = this.#turns.length - 1;
    while (this.#turns[index]?.neverBegan) index -= 1;
    return this.#turns[index]?.state === "running" ? index : this.#turns.length - 1;
  }

  get lastIndex(): number {
    return this.#turns.length - 1;
  }

  /** Position of its first event. */
  get firstEvent(): number | undefined {
    const first = this.#turns[0];
    return first && (first.items[0]?.events.first ?? first.events.first);
  }

  turn(index: number): TurnView | undefined {
    return this.#turns[index];
  }

  item([turn, item]: Place): ViewItem | undefined {
    return this.#turns[turn]?.items[item];
  }

  /** The newest turn with an id of the server; -1 when there is none. */
  indexOf(turnId: string): number {
    return this.#turns.findLastIndex((turn) => turn.turnId === turnId);
  }

  /** Begins a turn; without a state it is one for events outside of turns. */
  begin({ at }: Moment, facts: Partial<TurnView> & Pick<TurnView, "key">): void {
    const turn: TurnView = {
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
      const turn = this.#turns[index] as TurnView;
      this.#turns[index] = { ...turn, items: [...turn.items] };
      this.#drafts.add(index);
    }
    return this.#turns[index] as DraftTurn;
  }

  /** The turn that a new event belongs to, to be changed. */
  open(moment: Moment): DraftTurn {
    const { current } = this;
    // History that an agent tells, which the server never saw, continues in its own turn.
    const continues = current?.state === "running" || current?.state === "outside" || current?.key.startsWith(TOLD);
    if (!continues) this.begin(moment, { key: `outside-${moment.id}` });
    return this.draft(this.currentIndex);
  }

  /** Adds an item to the turn that a new event belongs to. */
  push(item: ViewItem, moment: Moment = { id: item.events.first, at: item.at }): void {
    const { items } = this.open(moment);
    const place: Place = [this.currentIndex, items.length];
    if (item.type === "tool") this.#toolPlaces().set(item.toolCallId, place);
    if (item.type === "request") this.#requestPlaces().set(item.agentRequestId, place);
    items.push(item);
  }

  /** Changes an item because of an event; returns it as it is then. */
  change<Kind extends ViewItem>([turn, index]: Place, change: (item: Kind) => Partial<Kind>, event?: number): Kind {
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
      const item = (this.#turns[turn] as TurnView).items.findLastIndex((each) => each.key === key);
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
    const idOf = (item: ViewItem): RpcId | undefined => (item.type === "request" ? item.agentRequestId : undefined);
    return (this.#requests ??= new Map(this.#all(idOf)));
  }

  *#all<Name>(name: (item: ViewItem) => Name | undefined): Generator<[Name, Place]> {
    for (const [turn, { items }] of this.#turns.entries()) {
      for (const [index, item] of items.entries()) {
        const found = name(item);
        if (found !== undefined) yield [found, [turn, index]];
      }
    }
  }
}

/** How the keys of turns begin that an agent told from its own memory. */
export const TOLD = "told-";
