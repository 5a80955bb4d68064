/** The lines of the list: those of a log up to a moment that a filter lets through. */

import { useEffect, useMemo, useReducer } from "react";

import type { Entry } from "../log/event.js";
import type { SessionLog } from "../log/session-log.js";
import { type Filter, Matching, isOpen } from "./filter.js";
import { type Row, Rows } from "./rows.js";

/** Milliseconds of a frame that a search may take. */
const SLICE = 8;

const known = new WeakMap<SessionLog, Rows>();

/** The rows of a log, as far as it goes by now. */
export function rowsOf(log: SessionLog): Rows {
  const rows = known.get(log) ?? new Rows();
  known.set(log, rows);
  for (let index = rows.length; index < log.length; index += 1) rows.add(log.entry(index) as Entry);
  return rows;
}

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
      const rows = rowsOf(log);
      const at = (index: number): { row: Row; entry: Entry } => ({
        row: rows.at(index) as Row,
        entry: log.entry(index) as Entry,
      });
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
