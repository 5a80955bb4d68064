/** Going through a log in its own time, faster or slower: which entry is shown after how long (pure). */

import type { SessionLog } from "../log/session-log.js";

/** Milliseconds that a pause between two events takes at most: you do not wait for an agent twice. */
const MAX_PAUSE = 1_000;
/** Milliseconds between events of the same time, so that each can be seen. */
const SHORTEST_PAUSE = 2;

export const SPEEDS = [0.5, 1, 2, 4, 16] as const;
export type Speed = (typeof SPEEDS)[number];

/** Begins after `count` entries. */
export class Player {
  readonly #log: SessionLog;
  #count: number;
  /** Milliseconds of the log's time that have passed since the newest entry that is shown. */
  #waited = 0;

  constructor(log: SessionLog, count: number) {
    this.#log = log;
    this.#count = count;
  }

  /** How many entries are shown. */
  get count(): number {
    return this.#count;
  }

  get isOver(): boolean {
    return this.#count >= this.#log.length;
  }

  /** Lets time pass; returns how many entries are shown then. */
  advance(milliseconds: number, speed: Speed): number {
    this.#waited += milliseconds * speed;
    while (!this.isOver) {
      const pause = this.#pause(this.#count);
      if (this.#waited < pause) break;
      this.#waited -= pause;
      this.#count += 1;
    }
    if (this.isOver) this.#waited = 0;
    return this.#count;
  }

  #pause(index: number): number {
    const [before, after] = [this.#log.rows.timeAt(index - 1), this.#log.rows.timeAt(index)];
    if (before === undefined || after === undefined) return SHORTEST_PAUSE;
    return Math.min(MAX_PAUSE, Math.max(SHORTEST_PAUSE, after - before));
  }
}
