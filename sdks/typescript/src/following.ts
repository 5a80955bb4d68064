/**
 * A session's log as it is written: what is there, then each event as it comes, with its id.
 *
 * The stream only says that there is something new. What it is comes from the log, so that nothing is missing: prompts,
 * answers and what agents ask are in it, too.
 */

import type { Connection } from "./connection.js";
import { Iteration } from "./iteration.js";
import { type LogEvent, eventsOf, isDeleted, isFinal, logPage } from "./past.js";
import type { Gap } from "./updates.js";

/** All events after an id, for as long as the session is not ended for good and we are attached. */
export function follow(connection: Connection, sessionId: string, after: number): Iteration<LogEvent | Gap> {
  const alarm = new Alarm();
  const stop = connection.whenever(sessionId, () => alarm.ring());
  const leave = (): void => {
    stop();
    alarm.end();
  };
  return new Iteration(written(connection, sessionId, after, alarm, leave), leave);
}

async function* written(
  connection: Connection,
  sessionId: string,
  after: number,
  alarm: Alarm,
  leave: () => void,
): AsyncGenerator<LogEvent | Gap, void, undefined> {
  const ask = (method: string, params: Record<string, unknown>): Promise<unknown> => connection.request(method, params);
  try {
    for (let position = after; !alarm.ended;) {
      // Before the log is read: what is written after this is announced anew.
      alarm.clear();
      const attached = connection.isAttached(sessionId);
      const page = await logPage(ask, sessionId, position).catch((error: unknown) => {
        if (attached && !isDeleted(error)) throw error;
        return undefined;
      });
      if (page === undefined) return;
      const events = eventsOf(page);
      yield* events;
      position = page.events.at(-1)?.id ?? position;
      if (page.next !== null) continue;
      if (!attached || events.some(isFinal)) return;
      await alarm.wait();
    }
  } finally {
    leave();
  }
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
