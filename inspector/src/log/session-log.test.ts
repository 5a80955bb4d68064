import { EMPTY_VIEW, reduce } from "sandboxagent";
import { describe, expect, it } from "vitest";

import { varied } from "../../../sdks/typescript/tests/support/script.js";
import { SessionLog } from "./session-log.js";

describe("a session's log", () => {
  it("has at every moment what was true then, in whatever order moments are looked at", () => {
    const script = varied();
    for (let turn = 0; turn < 60; turn += 1) script.turn(`again ${turn}`, () => [1, 2, 3, 4, 5].map((n) => script.say(`${n} `)));
    const { entries } = script;
    const log = SessionLog.of("s-1", entries);
    const counts = [...entries.keys()].map((index) => (index * 397) % entries.length);
    for (const count of counts.slice(0, 40)) {
      const entry = entries[count] as { id: number };
      expect(log.view(entry.id), `at ${entry.id}`).toEqual(reduce(entries.slice(0, count + 1)));
    }
    expect(log.view(script.lastId)).toBe(log.view());
    expect(log.view(0)).toBe(EMPTY_VIEW);
  });

  it("passes over what it has already, as after a reconnect", () => {
    const { entries } = varied();
    const log = new SessionLog("s-1", (call) => call());
    for (const entry of [...entries.slice(0, 20), ...entries.slice(10)]) log.append(entry);
    expect(log.length).toBe(entries.length);
    expect(log.view()).toEqual(reduce(entries));
  });

  it("tells its listeners once per frame, however many events come", () => {
    const frames: (() => void)[] = [];
    const log = new SessionLog("s-1", (call) => void frames.push(call));
    let heard = 0;
    const stop = log.subscribe(() => (heard += 1));
    const { entries } = varied();
    for (const entry of entries) log.append(entry);
    expect(frames).toHaveLength(1);
    expect(log.shown().length).toBe(0);
    frames.pop()?.();
    expect(heard).toBe(1);
    expect(log.shown().length).toBe(entries.length);
    const { view } = log.shown();
    expect(log.shown().view).toBe(view);
    stop();
    log.reading = { state: "live" };
    frames.pop()?.();
    expect(heard).toBe(1);
  });
});
