/** The lines of the list: those of a log up to a moment that a filter lets through. */

import { useEffect, useMemo, useReducer } from "react";

import type { Row } from "../log/rows.js";
import type { SessionLog } from "../log/session-log.js";
import { type Candidate, type Filter, Matching, isOpen } from "./filter.js";

/** Milliseconds of a frame that a search may take. */
const SLICE = 8;

export interface Listed {
  readonly count: number;
  /** The place in the log of a line of the list. */
  readonly place: (line: number) => number;
  /** The line of the list that shows a place in the log, or the next one after it. */
  readonly lineOf: (place: number) => number;
  /** Whether all of the log was looked through. */
  readonly done: boolean;
}

/** What a filter lets through of the first `upto` entries. */
export function useListed(log: SessionLog, filter: Filter, upto: number): Listed {
  const open = isOpen(filter);
  const matching = useMemo(() => new Matching(filter), [filter]);
  const [, again] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    if (open || matching.seen >= upto) return undefined;
    let frame = 0;
    const look = (): void => {
      const end = performance.now() + SLICE;
      const at = (index: number): Candidate => ({ row: log.rows.at(index) as Row, entry: () => log.entry(index) });
      if (!matching.advance(upto, at, () => performance.now() > end)) frame = requestAnimationFrame(look);
      again();
    };
    look();
    return () => cancelAnimationFrame(frame);
  }, [log, matching, open, upto]);
  if (open) return { count: upto, place: (line) => line, lineOf: (place) => place, done: true };
  return {
    count: matching.countBefore(upto),
    place: (line) => matching.found[line] as number,
    lineOf: (place) => matching.countBefore(place),
    done: matching.seen >= upto,
  };
}
