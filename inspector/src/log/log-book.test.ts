// @vitest-environment jsdom
import { describe, expect, it, vi } from "vitest";

import type { Entry } from "./event.js";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { LogBook, type Source } from "./log-book.js";
import { SessionLog } from "./session-log.js";

/** A server that can be cut. */
class Server {
  readonly reads: [string, number][] = [];
  fail: unknown;
  readonly #entries: readonly Entry[];
  readonly #upto: number;

  constructor(entries: readonly Entry[], upto = entries.length) {
    this.#entries = entries;
    this.#upto = upto;
  }

  get source(): Source {
    return this;
  }

  async *follow(id: string, after: number, signal: AbortSignal): AsyncGenerator<Entry> {
    this.reads.push([id, after]);
    if (this.fail !== undefined) throw this.fail;
    for (const entry of this.#entries.slice(0, this.#upto)) if ("id" in entry && entry.id > after) yield entry;
    if (this.#upto < this.#entries.length) await new Promise((resolve) => signal.addEventListener("abort", resolve));
  }

  async between(_: string, after: number, before: number): Promise<readonly Entry[]> {
    return this.#entries.filter((entry) => "id" in entry && entry.id > after && entry.id < before);
  }
}

const { entries } = new Script().made().turn("one").turn("two");

async function until(condition: () => boolean): Promise<void> {
  await vi.waitFor(() => expect(condition()).toBe(true), { timeout: 60_000 });
}

describe("the book of logs", () => {
  it("reads a log once, however many rooms show it", async () => {
    const server = new Server(entries);
    const book = new LogBook(server.source);
    const log = book.log("s-1");
    const releases = [book.retain("s-1"), book.retain("s-1")];
    await until(() => log.reading.state === "complete");
    expect(server.reads).toEqual([["s-1", 0]]);
    expect(log.length).toBe(entries.length);
    expect(book.log("s-1")).toBe(log);
    for (const release of releases) release();
    book.close();
  });

  it("goes on where it ended when the server is another one, and repeats nothing", async () => {
    const before = new Server(entries, 5);
    const book = new LogBook(before.source);
    const log = book.log("s-1");
    book.retain("s-1");
    await until(() => log.length === 5);
    const after = new Server(entries);
    book.read(after.source);
    await until(() => log.length === entries.length);
    expect(after.reads).toEqual([["s-1", 5]]);
    book.close();
  });

  it("says that a log cannot be read, and tries again what may pass", async () => {
    const server = new Server(entries);
    server.fail = new Error("no such session");
    const strict = new LogBook(server.source);
    strict.retain("s-1");
    await until(() => strict.log("s-1").reading.state === "failed");
    const patient = new LogBook(server.source, () => true);
    patient.retain("s-1");
    await until(() => server.reads.length === 2);
    expect(patient.log("s-1").reading.state).toBe("loading");
    server.fail = undefined;
    await until(() => patient.log("s-1").length === entries.length);
    strict.close();
    patient.close();
  });

  it("has logs from files beside those of the server", () => {
    const book = new LogBook();
    const log = SessionLog.of("file:a.jsonl", entries);
    book.keep(log);
    expect(book.log("file:a.jsonl")).toBe(log);
    expect(log.shown().view.turns).toHaveLength(2);
  });
});
