/**
 * Server-sent events out of bytes, as the HTML standard has them.
 *
 * This module does not read events. `EventSource` would not do: it cannot send headers, nor report comments.
 */

/** One event: its name, its data, and the id of the last event that had one. */
export interface ServerEvent {
  readonly event: string;
  readonly data: string;
  readonly id: string;
}

/** Pieces of text in, whole events out. A line may come in any number of pieces; each is examined once. */
export class EventParser {
  #line: string[] = [];
  #afterReturn = false;
  #event = "";
  #data: string[] = [];
  #id = "";

  /** The events that a piece completes. */
  push(text: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    if (text === "") return found;
    // "\r\n" is one end of a line, also when a piece ends in between.
    let start = this.#afterReturn && text[0] === "\n" ? 1 : 0;
    this.#afterReturn = text.endsWith("\r");
    let feed = text.indexOf("\n", start);
    let carriage = text.indexOf("\r", start);
    while (feed !== -1 || carriage !== -1) {
      const byReturn = carriage !== -1 && (feed === -1 || carriage < feed);
      const end = byReturn ? carriage : feed;
      this.#line.push(text.slice(start, end));
      const line = this.#line.length === 1 ? (this.#line[0] as string) : this.#line.join("");
      this.#line = [];
      this.#take(line, found);
      start = byReturn && feed === end + 1 ? end + 2 : end + 1;
      if (feed !== -1 && feed < start) feed = text.indexOf("\n", start);
      if (carriage !== -1 && carriage < start) carriage = text.indexOf("\r", start);
    }
    if (start < text.length) this.#line.push(text.slice(start));
    return found;
  }

  #take(line: string, found: ServerEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) {
        found.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
      }
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    const name = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}

/** The events of a body as they arrive, in one list for each piece. Leaving the loop drops the body. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent[], void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // Also when there is none: a comment is a sign of life.
      yield parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
