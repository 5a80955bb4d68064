import { describe, expect, it } from "vitest";

import { execFileSync } from "node:child_process";

import type { Entry, LogEvent } from "../log/event.js";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { Rows } from "../log/rows.js";
import { curlOf, linesOf, readLines } from "./exporting.js";
import { EVERYTHING, Matching, isOpen } from "./filter.js";
import { brief, previewOf, sizeOf } from "./preview.js";

function rowsOf(entries: readonly Entry[]): Rows {
  const rows = new Rows();
  for (const entry of entries) rows.add(entry);
  return rows;
}

function all(rows: Rows) {
  return Array.from({ length: rows.length }, (_, index) => rows.at(index)!);
}

describe("rows", () => {
  it("pair requests with their responses, with the time between", () => {
    const script = new Script().made();
    script.turn("Hello");
    const rows = all(rowsOf(script.entries));
    const prompt = rows.find(({ method, kind }) => method === "session/prompt" && kind === "request")!;
    const answer = rows[prompt.pair!]!;
    expect(answer).toMatchObject({ kind: "response", method: "session/prompt", subtype: "end_turn", pair: prompt.index });
    expect(answer.latency).toBe(Date.parse(answer.at) - Date.parse(prompt.at));
    expect(prompt.latency).toBe(answer.latency);
  });

  it("keep requests of both sides apart, also with the same id", () => {
    const script = new Script();
    script.event("fromClient", { id: 1, method: "session/prompt", params: {} });
    script.event("fromAgent", { id: 1, method: "fs/read_text_file", params: {} });
    script.event("fromClient", { id: 1, method: "session/set_mode", params: {} });
    script.event("fromServer", { id: 1, result: { content: "" } });
    script.event("fromAgent", { id: 1, result: {} });
    script.event("fromAgent", { id: 1, result: { stopReason: "end_turn" } });
    expect(all(rowsOf(script.entries)).map(({ pair }) => pair)).toEqual([5, 3, 4, 1, 2, 0]);
  });

  it("take 1 and \"1\" for two ids", () => {
    const script = new Script();
    script.event("fromClient", { id: 1, method: "a", params: {} });
    script.event("fromClient", { id: "1", method: "b", params: {} });
    script.event("fromAgent", { id: "1", result: {} });
    expect(all(rowsOf(script.entries)).map(({ pair }) => pair)).toEqual([undefined, 2, 1]);
  });

  it("name the kind of an update, and count what can be chosen", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      script.say("a");
      script.say("b");
    });
    const rows = rowsOf(script.entries);
    expect(rows.methods.get("session/update")?.get("agent_message_chunk")).toBe(2);
  });

  it("have a preview that never looks further than it shows", () => {
    const huge = { text: "x".repeat(1_000_000), list: Array.from({ length: 100_000 }, (_, index) => index) };
    expect(brief(huge, 100).length).toBeLessThanOrEqual(101);
    const script = new Script();
    script.say("two\nlines");
    expect(previewOf(script.entries[0]!)).toBe("two lines");
    expect(sizeOf(script.entries[0]!)).toBe(JSON.stringify((script.entries[0] as LogEvent).envelope).length);
  });
});

describe("a filter", () => {
  const script = new Script().made();
  script.turn("Find the needle", () => {
    script.say("hay");
    script.tool("call-1", { rawInput: { hidden: "NEEDLE" } });
  });
  script.event("fromClient", { id: 50, method: "session/set_mode", params: {} });
  script.event("fromAgent", { id: 50, error: { code: -32602, message: "no" } });
  const rows = rowsOf(script.entries);
  const at = (index: number) => ({ row: rows.at(index)!, entry: () => script.entries[index] });
  const found = (filter: Partial<typeof EVERYTHING>): number[] => {
    const matching = new Matching({ ...EVERYTHING, ...filter });
    expect(matching.advance(rows.length, at, () => false)).toBe(true);
    return matching.found;
  };

  it("finds text anywhere in an envelope, in any case", () => {
    expect(found({ text: "needle" })).toHaveLength(2);
  });

  it("finds errors, directions, methods and kinds", () => {
    expect(found({ errors: true }).map((index) => rows.at(index)?.method)).toEqual(["session/set_mode"]);
    expect(found({ ways: new Set(["fromServer"]) })).toHaveLength(2);
    expect(found({ method: "session/update", subtype: "tool_call" })).toHaveLength(1);
    expect(isOpen(EVERYTHING)).toBe(true);
  });

  it("stops when the time is over, and goes on where it was", () => {
    const long = new Script().made();
    for (let index = 0; index < 500; index += 1) long.say(`word ${index}`);
    const many = rowsOf(long.entries);
    const matching = new Matching({ ...EVERYTHING, text: "word" });
    const look = (index: number) => ({ row: many.at(index)!, entry: () => long.entries[index] });
    let slices = 1;
    while (!matching.advance(many.length, look, () => true)) slices += 1;
    expect(slices).toBeGreaterThan(4);
    expect(matching.found).toHaveLength(500);
    expect(matching.countBefore(12)).toBe(10);
  });
});

describe("an exported log", () => {
  it("is read back as it was, with its gaps", () => {
    const script = new Script().made().turn("Hello");
    const entries: Entry[] = [...script.entries, { sessionUpdate: "gap", after: 100, resumesAt: 200 }];
    expect(readLines([...linesOf(entries)].join(""))).toEqual({ entries, bad: [] });
  });

  it("says which lines are no events", () => {
    const { entries, bad } = readLines('{"id":1}\nnonsense\n\n{"id":1,"at":"","direction":"fromAgent","envelope":{}}\n');
    expect(entries).toHaveLength(1);
    expect(bad).toEqual([1, 2]);
  });

  it("has each envelope as a call of curl that a shell takes as it is, without a secret in it", () => {
    const script = new Script();
    script.prompt(`it's "quoted" $(rm -rf /) \`x\` \\ and \n more`);
    const event = script.entries[0] as LogEvent;
    const command = curlOf(event, "s-1", "http://127.0.0.1:2468");
    expect(command).toContain("$TOKEN");
    const shown = execFileSync("sh", ["-c", `curl() { for last; do :; done; printf %s "$last"; }; ${command}`]).toString();
    expect(JSON.parse(shown)).toEqual(event.envelope);
  });
});
