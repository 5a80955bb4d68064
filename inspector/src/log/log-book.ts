/**
 * The logs that this page reads: one for each session that any room shows, however many rooms show it.
 *
 * A log that no room needs any more is kept for a while, so that going back to it is quick, and then forgotten.
 */

import type { Entry } from "./event.js";
import { SessionLog } from "./session-log.js";

/** Where logs are read. */
export interface Source {
  /** A session's log after an event, and then each event as it is written. */
  follow(sessionId: string, after: number, signal: AbortSignal): AsyncIterable<Entry>;
  /** What lies between two events, both exclusive. */
  between(sessionId: string, after: number, before: number): Promise<readonly Entry[]>;
}

/** Whether a failure may pass, such as a server that cannot be reached. */
export type MayPass = (error: unknown) => boolean;

/** Milliseconds after which an unused log is forgotten. */
const KEPT = 60_000;
/** Milliseconds without an event after which all of the past is taken to be read. */
const QUIET = 300;
/** Milliseconds between two tries. */
const PAUSE = 1_000;

interface Held {
  readonly log: SessionLog;
  /** How many rooms show it. */
  users: number;
  reader: AbortController | undefined;
  forgetting: ReturnType<typeof setTimeout> | undefined;
}

export class LogBook {
  readonly #held = new Map<string, Held>();
  readonly #files = new Map<string, SessionLog>();
  readonly #mayPass: MayPass;
  #source: Source | undefined;

  constructor(source?: Source, mayPass: MayPass = () => false) {
    this.#source = source;
    this.#mayPass = mayPass;
  }

  /** Reads from there from now on. What was read stays, and goes on where it ended. */
  read(source: Source | undefined): void {
    if (source === this.#source) return;
    this.#source = source;
    for (const held of this.#held.values()) {
      held.reader?.abort();
      held.reader = undefined;
      if (held.users > 0) this.#start(held);
    }
  }

  /** Puts a log that is complete into the book, such as one from a file. */
  keep(log: SessionLog): void {
    this.#files.set(log.id, log);
  }

  /** The log of a session; `retain` it to have it read. */
  log(sessionId: string): SessionLog {
    return this.#files.get(sessionId) ?? this.#hold(sessionId).log;
  }

  /** Has a session's log read for as long as it is needed; returns a function that says that it no longer is. */
  retain(sessionId: string): () => void {
    if (this.#files.has(sessionId)) return () => undefined;
    const held = this.#hold(sessionId);
    held.users += 1;
    clearTimeout(held.forgetting);
    if (held.reader === undefined) this.#start(held);
    let released = false;
    return () => {
      if (released) return;
      released = true;
      held.users -= 1;
      if (held.users === 0) this.#forgetLater(sessionId, held);
    };
  }

  /** Stops all reading. */
  close(): void {
    for (const held of this.#held.values()) {
      clearTimeout(held.forgetting);
      held.reader?.abort();
    }
    this.#held.clear();
  }

  #hold(sessionId: string): Held {
    let held = this.#held.get(sessionId);
    if (held === undefined) {
      held = { log: new SessionLog(sessionId), users: 0, reader: undefined, forgetting: undefined };
      this.#held.set(sessionId, held);
    }
    return held;
  }

  #forgetLater(sessionId: string, held: Held): void {
    held.forgetting = setTimeout(() => {
      held.reader?.abort();
      this.#held.delete(sessionId);
    }, KEPT);
  }

  #start(held: Held): void {
    if (this.#source === undefined) return;
    const reader = new AbortController();
    const source = this.#source;
    held.reader = reader;
    held.log.readAgain = async (after, before) => await source.between(held.log.id, after, before);
    void this.#follow(held.log, source, reader.signal);
  }

  async #follow(log: SessionLog, source: Source, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const quiet = new Quiet(() => {
        if (!signal.aborted) log.reading = { state: "live" };
      });
      try {
        for await (const entry of source.follow(log.id, log.lastId, signal)) {
          if (signal.aborted) return;
          log.append(entry);
          if (log.reading.state !== "live") quiet.wait();
        }
        if (!signal.aborted) log.reading = { state: "complete" };
        return;
      } catch (error) {
        if (signal.aborted) return;
        if (!this.#mayPass(error)) {
          log.reading = { state: "failed", error };
          return;
        }
      } finally {
        quiet.end();
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }
}

/** Calls back once nothing has happened for a while. */
class Quiet {
  readonly #call: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(call: () => void) {
    this.#call = call;
    this.wait();
  }

  wait(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#call, QUIET);
  }

  end(): void {
    clearTimeout(this.#timer);
  }
}
