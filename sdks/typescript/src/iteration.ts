/** Iteration over a feed. When you leave the loop, the SDK keeps nothing for it. */

/** An iterator that can be left early: `break` in a loop, `return()`, or `await using`. */
export class Iteration<T> implements AsyncIterableIterator<T>, AsyncDisposable {
  readonly #items: AsyncGenerator<T, void, undefined>;
  readonly #leave: () => void;

  /** @internal */
  constructor(items: AsyncGenerator<T, void, undefined>, leave: () => void) {
    this.#items = items;
    this.#leave = leave;
  }

  /** The next item, once there is one. */
  async next(): Promise<IteratorResult<T, void>> {
    return await this.#items.next();
  }

  /** Ends the iteration, also for a pending `next()`. */
  async return(): Promise<IteratorResult<T, void>> {
    // A generator that has not begun would not clean up; one that waits would not stop waiting.
    this.#leave();
    return await this.#items.return();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }
}
