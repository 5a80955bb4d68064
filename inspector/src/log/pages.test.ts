import { describe, expect, it, vi } from "vitest";

import { reduce } from "sandboxagent";
import type { Entry } from "./event.js";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { PAGE } from "./pages.js";
import { SessionLog } from "./session-log.js";

/** Characters of JSON that the logs here keep. */
const WINDOW = 400_000;

/** A session that goes on for long: turns with text, tool calls and requests. */
function long(turns: number): readonly Entry[] {
  const script = new Script().made();
  for (let turn = 0; turn < turns; turn += 1) {
    script.turn(`Turn ${turn}`, () => {
      for (let word = 0; word < 40; word += 1) script.say(`${turn}.${word} and some words that take their room. `);
      script.tool(`call-${turn}`, { rawOutput: "x".repeat(500) });
    });
  }
  return script.entries;
}

interface Server {
  readonly log: SessionLog;
  readonly reads: (readonly [number, number])[];
}

/** A log that can read its entries again. */
function serve(entries: readonly Entry[], kept: readonly Entry[] = entries): Server {
  const log = new SessionLog("s-1", (call) => call(), WINDOW);
  const reads: (readonly [number, number])[] = [];
  log.readAgain = async (after, before) => {
    reads.push([after, before]);
    return kept.filter((entry) => "id" in entry && entry.id > after && entry.id < before);
  };
  for (const entry of entries) log.append(entry);
  return { log, reads };
}

async function entryOf(log: SessionLog, index: number): Promise<Entry> {
  return await vi.waitFor(() => {
    const entry = log.entry(index);
    expect(entry).toBeDefined();
    return entry as Entry;
  }, 60_000);
}

describe("a long log", () => {
  const entries = long(400);

  it("has no more in memory after an hour than after some minutes", async () => {
    const log = new SessionLog("s-1", (call) => call(), WINDOW);
    log.readAgain = async () => [];
    const sizes: number[] = [];
    for (const [index, entry] of entries.entries()) {
      log.append(entry);
      if (index % (8 * PAGE) === 0) sizes.push(log.size);
    }
    expect(JSON.stringify(entries).length).toBeGreaterThan(6 * WINDOW);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(WINDOW);
    expect(log.length).toBe(entries.length);
  });

  it("looks the same to every reader: entries that were let go are read again", async () => {
    const { log, reads } = serve(entries);
    expect(log.entry(entries.length - 1)).toBe(entries.at(-1));
    expect(reads).toEqual([]);
    for (const index of [0, 5 * PAGE + 7, 1, 17 * PAGE - 1]) expect(await entryOf(log, index)).toBe(entries[index]);
    expect(reads).toHaveLength(3);
    expect(log.size).toBeLessThanOrEqual(WINDOW);
  });

  it("tells those that wait for an entry when it has come", async () => {
    const { log } = serve(entries);
    const heard = vi.fn();
    log.subscribe(heard);
    expect(log.entry(0)).toBeUndefined();
    await vi.waitFor(() => expect(heard).toHaveBeenCalled(), 60_000);
    expect(log.entry(0)).toBe(entries[0]);
  });

  it("shows what was true at any moment, also where its entries were let go", async () => {
    const { log } = serve(entries);
    for (const count of [3, 2 * PAGE, 9 * PAGE + 100, entries.length - 2]) {
      const { id } = entries[count - 1] as { id: number };
      await vi.waitFor(() => expect(log.view(id).position).toBe(id), 60_000);
      expect(log.view(id)).toEqual(reduce(entries.slice(0, count)));
    }
  });

  it("is exported whole, and keeps nothing for that", async () => {
    const { log } = serve(entries);
    const before = log.size;
    const found: Entry[] = [];
    for await (const page of log.first(entries.length - 5)) found.push(...page);
    expect(found).toEqual(entries.slice(0, -5));
    expect(log.size).toBe(before);
  });

  it("says so where the server has let go of events meanwhile", async () => {
    const { log } = serve(entries, entries.slice(100));
    const first = (entries[0] as { id: number }).id;
    expect(await entryOf(log, 0)).toEqual({ sessionUpdate: "gap", after: first - 1, resumesAt: first + 1 });
    expect(await entryOf(log, 100)).toBe(entries[100]);
  });

  it("lets nothing go that it cannot read again", () => {
    const log = SessionLog.of("file:a.jsonl", entries);
    expect(log.entry(0)).toBe(entries[0]);
  });
});
