/** A session's log and its views, for components. */

import { type ReactNode, createContext, useContext, useEffect, useMemo, useSyncExternalStore } from "react";

import type { SessionStatus, SessionView } from "sandboxagent";
import type { LogBook } from "./log-book.js";
import type { SessionLog, Shown } from "./session-log.js";

const Book = createContext<LogBook | undefined>(undefined);

/** Components inside read sessions' logs from this book. */
export function Logs({ book, children }: { readonly book: LogBook; readonly children: ReactNode }): ReactNode {
  return <Book value={book}>{children}</Book>;
}

export function useLogBook(): LogBook {
  const book = useContext(Book);
  if (book === undefined) throw new Error("there is no <Logs> around this component");
  return book;
}

/** The log of a session, read for as long as this component is there. */
export function useSessionLog(sessionId: string): SessionLog {
  const book = useLogBook();
  useEffect(() => book.retain(sessionId), [book, sessionId]);
  return useMemo(() => book.log(sessionId), [book, sessionId]);
}

/** What there is of a log; changes at most once per frame. */
export function useShown(log: SessionLog): Shown {
  return useSyncExternalStore(log.subscribe, log.shown);
}

/** How a session stands by its own log, which knows it first; undefined until all of it is read. */
export function useLiveState(sessionId: string): SessionStatus | undefined {
  const log = useSessionLog(sessionId);
  return useSyncExternalStore(log.subscribe, () => {
    const { view, reading } = log.shown();
    return reading.state === "live" ? view.status : undefined;
  });
}

/** The session as it was after the event `at`; without one, as it is now. */
export function useSessionView(sessionId: string, at?: number): SessionView {
  const log = useSessionLog(sessionId);
  return useSyncExternalStore(log.subscribe, () => {
    const { view } = log.shown();
    return at === undefined || at >= view.position ? view : log.view(at);
  });
}
