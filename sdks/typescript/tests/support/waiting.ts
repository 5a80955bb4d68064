/**
 * Waiting for things to happen. A wait ends with what it waits for, so its bound can be long: a busy machine is no
 * failure.
 */

import type { Iteration, LogEvent, Session } from "sandboxagent";

/** Milliseconds after which a wait has failed. */
export const BOUND = 60_000;

/** What a promise gives; fails when that takes too long. */
export async function within<T>(promise: PromiseLike<T>, what = "this", bound = BOUND): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come within ${bound} ms`)), bound);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits until a condition holds. */
export async function eventually(condition: () => boolean | Promise<boolean>, what = "the condition"): Promise<void> {
  const end = Date.now() + BOUND;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not come true within ${BOUND} ms`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Everything that comes, until it ends. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

/** All events of a session's log; there must be no gap. */
export async function logOf(session: Session, range: { after?: number; before?: number } = {}): Promise<LogEvent[]> {
  return (await all(session.log({ before: Number.MAX_SAFE_INTEGER, ...range }))).map((event) => {
    if (!("envelope" in event)) throw new Error("something is no longer kept");
    return event;
  });
}

/** The next item that fits; those before it are passed over. */
export async function until<T>(items: AsyncIterator<T, unknown>, fits: (item: T) => boolean): Promise<T> {
  for (;;) {
    const { done, value } = await within(items.next(), "an item");
    if (done) throw new Error("it ended before the item came");
    if (fits(value as T)) return value as T;
  }
}

/** Something that somebody says is there. */
export class Arrival<T = void> {
  readonly promise: Promise<T>;
  arrive!: (value: T) => void;

  constructor() {
    this.promise = new Promise((resolve) => {
      this.arrive = resolve;
    });
  }

  then<R>(fulfilled: (value: T) => R): Promise<R> {
    return within(this.promise, "the arrival").then(fulfilled);
  }
}

export type { Iteration };
