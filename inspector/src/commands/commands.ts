/** What a person can do where they are: rooms say it while they are there, and the palette lists it. */

import { type ReactNode, useEffect, useRef } from "react";

import { Store, useStore } from "../server/store.js";

export interface Command {
  /** What it does, in a few words; unique among all. */
  readonly label: string;
  readonly icon?: ReactNode;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  readonly run: () => void;
}

const offered = new Store<ReadonlyMap<symbol, readonly Command[]>>(new Map());

/** Offers commands for as long as this component is there. */
export function useOffer(commands: readonly Command[]): void {
  const owner = useRef(Symbol("commands"));
  const latest = useRef(commands);
  useEffect(() => {
    latest.current = commands;
  });
  // Another list only when it reads in another way: what a command does is looked up when it is run.
  const reads = JSON.stringify(commands.map(({ label, disabled }) => [label, disabled]));
  useEffect(() => {
    const own = owner.current;
    const run = (index: number) => (): void => latest.current[index]?.run();
    offered.set(new Map(offered.get()).set(own, latest.current.map((each, index) => ({ ...each, run: run(index) }))));
    return () => {
      const rest = new Map(offered.get());
      rest.delete(own);
      offered.set(rest);
    };
  }, [reads]);
}

/** All that can be done now: what the room offers comes before what every room has. */
export function useOffered(): readonly Command[] {
  return [...useStore(offered).values()].toReversed().flat().filter(({ disabled }) => disabled !== true);
}
