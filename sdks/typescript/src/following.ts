/**
 * Reads a session's log as it is written: the events so far, then each new one, with its position.
 *
 * The stream only signals a new event. The event itself is read from the log, so nothing is missing:
 * prompts, answers and agents' requests are in it, too.
 */

import type { Connection } from "./connection.js";
import { sessionEvent } from "./events.js";
import { Iteration } from "./iteration.js";
import type { Logger } from "./log.js";
import { type Ask, type LogEvent, eventsOf, isDeleted, isFinal, logPage } from "./past.js";
import type { Gap, SessionEvent } from "./updates.js";
import type { SessionReducer } from "./view/reducer.js";
import type { SessionView } from "./view/session-view.js";

/** Events that were read at once, and whether they are the newest. */
interface Piece {
  readonly events: readonly (LogEvent | Gap)[];
  readonly isNewest: boolean;
}

/** All events after a position, for as long as the session is not ended for good and we are attached. */
export function followLog(connection: Connection, sessionId: string, after: number): Iteration<LogEvent | Gap> {
  const [pieces, leave] = open(connection, sessionId, after);
  return new Iteration(eachOf(pieces), leave);
}

/** The events between two positions, both exclusive. */
export async function* readLog(
  connection: Connection,
  sessionId: string,
  after: number,
  before?: number,
): AsyncGenerator<LogEvent | Gap, void, undefined> {
  let next: number | null = after;
  while (next !== null) {
    const page = await logPage(asking(connection), sessionId, next, before);
    yield* eventsOf(page);
    next = page.next;
  }
}

/**
 * The past and future events of a session, with the state of the session.
 *
 * Iterate over it, or leave it with `break`, `return()` or `await using`.
 */
export class Following extends Iteration<SessionEvent> {
  readonly #progress: Progress;

  /** @internal */
  constructor(connection: Connection, sessionId: string, reducer: SessionReducer) {
    const progress: Progress = { reducer, isLive: false, watchers: new Set() };
    const [pieces, leave] = open(connection, sessionId, reducer.view.position);
    super(typed(pieces, progress, connection.asking.log), leave);
    this.#progress = progress;
  }

  /** The session after the last event, and after what the log has had since without an event of its own. */
  get view(): SessionView {
    return this.#progress.reducer.view;
  }

  /**
   * Calls back when the view has changed, also by what is no event of its own. Once for all that was read together.
   *
   * Only while the events are iterated over. Returns a function that ends it.
   */
  onView(callback: () => void): () => void {
    this.#progress.watchers.add(callback);
    return () => void this.#progress.watchers.delete(callback);
  }

  /** Whether the past is read, so that the next events are live. */
  get isLive(): boolean {
    return this.#progress.isLive;
  }
}

interface Progress {
  readonly reducer: SessionReducer;
  isLive: boolean;
  readonly watchers: Set<() => void>;
}

async function* typed(
  pieces: AsyncIterable<Piece>,
  progress: Progress,
  log: Logger,
): AsyncGenerator<SessionEvent, void, undefined> {
  for await (const { events, isNewest } of pieces) {
    const last = events.findLastIndex((event) => sessionEvent(event, log) !== undefined);
    for (const [index, event] of events.entries()) {
      progress.reducer.add(event);
      // Whoever looks at the last event of the past sees that it is the last one.
      if (isNewest && index === last) for (const rest of events.slice(index + 1)) progress.reducer.add(rest);
      if (isNewest && index >= last) progress.isLive = true;
      const typed = sessionEvent(event, log);
      if (typed) yield typed;
    }
    progress.isLive ||= isNewest;
    for (const changed of progress.watchers) changed();
  }
}

async function* eachOf(pieces: AsyncIterable<Piece>): AsyncGenerator<LogEvent | Gap, void, undefined> {
  for await (const { events } of pieces) yield* events;
}

function open(
  connection: Connection,
  sessionId: string,
  after: number,
): [pieces: AsyncGenerator<Piece, void, undefined>, leave: () => void] {
  const alarm = new Alarm();
  const stop = connection.whenever(sessionId, () => alarm.ring());
  const leave = (): void => {
    stop();
    alarm.end();
  };
  return [written(connection, sessionId, after, alarm, leave), leave];
}

async function* written(
  connection: Connection,
  sessionId: string,
  after: number,
  alarm: Alarm,
  leave: () => void,
): AsyncGenerator<Piece, void, undefined> {
  try {
    for (let position = after; !alarm.ended;) {
      // Before the log is read: what is written after this is announced anew.
      alarm.clear();
      const attached = connection.isAttached(sessionId);
      const page = await logPage(asking(connection), sessionId, position).catch((error: unknown) => {
        if (attached && !isDeleted(error)) throw error;
        return undefined;
      });
      if (page === undefined) return;
      const events = eventsOf(page);
      yield { events, isNewest: page.next === null };
      position = page.events.at(-1)?.id ?? position;
      if (page.next !== null) continue;
      if (!attached || events.some(isFinal)) return;
      await alarm.wait();
    }
  } finally {
    leave();
  }
}

function asking(connection: Connection): Ask {
  return (method, params) => connection.request(method, params);
}

/** Signals that there is something new; a later waiter sees the signal too. */
class Alarm {
  ended = false;
  #rung = false;
  #wake: (() => void) | undefined;

  ring(): void {
    this.#rung = true;
    this.#wake?.();
  }

  clear(): void {
    this.#rung = false;
  }

  end(): void {
    this.ended = true;
    this.ring();
  }

  async wait(): Promise<void> {
    if (this.#rung) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
  }
}
