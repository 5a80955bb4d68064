/**
 * What every client program in JavaScript does for `sdk.py`: takes a job, says its figures, and waits in between.
 *
 * An SDK is an object with `connect(job)` and `start(job)`, which give `{ prompt, close }`. `prompt(text, take)` ends with
 * the turn, and calls `take` with the text of each update on the way. ours.py is the same in Python.
 */

import { readSync, writeSync } from "node:fs";

/** A burst with updates missing is over when none has come for so long. */
const QUIET_MS = 3_000;

/** Runs the job that is the program's argument. */
export async function run(sdk) {
  const job = JSON.parse(process.argv[2]);
  const client = job.do === "start" ? await sdk.start(job) : await sdk.connect(job);
  await JOBS[job.do](client, job);
  wait();
  await client.close();
}

const JOBS = { burst, trips, start };

async function burst(client, { count, size, tag }) {
  const tally = new Tally(count, tag);
  say({ ready: true });
  wait();
  const began = performance.now();
  await client.prompt(`burst ${count} ${size} ${tag}`, (text) => tally.take(text));
  const ended = performance.now();
  const before = tally.delivered;
  await tally.settled(ended);
  const { first, last, delivered, lost, repeated, reordered } = tally;
  const seconds = (Math.max(ended, last) - began) / 1000;
  say({ seconds, first_ms: first - began, delivered, lost, repeated, reordered, late: delivered - before });
}

async function trips(client, { count, warmup }) {
  const times = [];
  say({ ready: true });
  wait();
  for (let trip = -warmup; trip < count; trip += 1) {
    const began = performance.now();
    await client.prompt("hello", () => undefined);
    if (trip >= 0) times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  say({ p50_ms: times[Math.floor(count * 0.5)], p99_ms: times[Math.floor(count * 0.99)] });
}

async function start(client, { tag }) {
  const tally = new Tally(1, tag);
  await client.prompt(`burst 1 120 ${tag}`, (text) => {
    tally.take(text);
    if (tally.delivered === 1) say({ updated: true });
  });
  await tally.settled(performance.now());
}

/** Which updates came, by the number in their text; which twice, and which after a higher one. */
class Tally {
  first = 0;
  last = 0;
  delivered = 0;
  repeated = 0;
  reordered = 0;
  #seen;
  #mark;
  #next = 0;

  constructor(count, tag) {
    this.#seen = new Uint8Array(count);
    this.#mark = `@${tag}:`;
  }

  get lost() {
    return this.#seen.length - this.delivered;
  }

  /** What an SDK tells after the end of its prompt has been told all the same. */
  async settled(ended) {
    while (this.lost > 0 && performance.now() - Math.max(ended, this.last) < QUIET_MS) await pause();
  }

  take(text) {
    const at = this.#mark.length;
    if (!text.startsWith(this.#mark)) return;
    const number = Number(text.slice(at, at + 10));
    this.last = performance.now();
    if (this.first === 0) this.first = this.last;
    if (this.#seen[number] === 1) {
      this.repeated += 1;
      return;
    }
    this.#seen[number] = 1;
    this.delivered += 1;
    if (number < this.#next) this.reordered += 1;
    else this.#next = number + 1;
  }
}

function say(figures) {
  writeSync(1, `${JSON.stringify(figures)}\n`);
}

/** Stands still until there is a line on stdin, or its end: whoever gave the job looks at this process meanwhile. */
function wait() {
  readSync(0, Buffer.alloc(64));
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, 20));
}
