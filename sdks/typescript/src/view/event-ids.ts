/** The ids of the events that a part of a session came from. */

/** The same as JSON. */
export interface EventRange {
  /** The first of them; 0 when there is none. */
  readonly first: number;
  /** The last of them; 0 when there is none. */
  readonly last: number;
  /** How many there are. */
  readonly count: number;
}

/**
 * The ids of the events that something came from, oldest first.
 *
 * It never changes. `with` makes a new one, which shares its storage with this one: a text of fifty thousand pieces
 * costs one list. As JSON it is its first and its last id and their number; one that is made of that knows these alone.
 */
export class EventIds implements EventRange, Iterable<number> {
  /** The first id; 0 when there is none. */
  readonly first: number;
  /** How many ids there are. */
  readonly count: number;
  /** Ids after those that only a range is known of. */
  readonly #ids: number[];
  readonly #length: number;
  readonly #past: EventRange | undefined;

  private constructor(ids: number[], length: number, past: EventRange | undefined) {
    this.#ids = ids;
    this.#length = length;
    this.#past = past;
    this.first = past?.first ?? ids[0] ?? 0;
    this.count = length + (past?.count ?? 0);
  }

  /** Some ids, which must rise. */
  static of(...ids: number[]): EventIds {
    return new EventIds(ids, ids.length, undefined);
  }

  /** Ids as a stored view has them. */
  static from({ first, last, count }: EventRange): EventIds {
    if (count === 0) return EventIds.of();
    return count === 1 ? EventIds.of(first) : new EventIds([], 0, { first, last, count });
  }

  /** The last id; 0 when there is none. */
  get last(): number {
    return this.#ids[this.#length - 1] ?? this.#past?.last ?? 0;
  }

  /** These and one more. */
  with(id: number): EventIds {
    // Another reader may have continued from here: with the same event, as logs are read again, or with another one.
    if (this.#ids.length > this.#length && this.#ids[this.#length] !== id) {
      return new EventIds([...this.#ids.slice(0, this.#length), id], this.#length + 1, this.#past);
    }
    this.#ids[this.#length] = id;
    return new EventIds(this.#ids, this.#length + 1, this.#past);
  }

  /** Whether an id is one of them. Of a stored view, all ids between its first and its last one count. */
  has(id: number): boolean {
    if (this.#past && id <= this.#past.last) return id >= this.#past.first;
    let low = 0;
    let high = this.#length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.#ids[middle] as number;
      if (found === id) return true;
      if (found < id) low = middle + 1;
      else high = middle - 1;
    }
    return false;
  }

  /** The ids. Of a stored view, of which only the first and the last are known, these. */
  *[Symbol.iterator](): Iterator<number> {
    if (this.#past) yield* [this.#past.first, this.#past.last];
    for (let index = 0; index < this.#length; index += 1) yield this.#ids[index] as number;
  }

  /** What JSON keeps of it. */
  toJSON(): EventRange {
    return { first: this.first, last: this.last, count: this.count };
  }
}
