import { describe, expect, it } from "vitest";

import type { Entry, LogEvent } from "../log/event.js";
import { Script } from "../../../sdks/typescript/tests/support/script.js";
import { SessionLog } from "../log/session-log.js";
import { pastOf } from "./marks.js";
import { Player } from "./player.js";

describe("the past on a scrubber", () => {
  it("has turns one after another, with what was asked for, and moments that stand out", () => {
    const script = new Script().made();
    script.turn("First", () => {
      script.edit("call-1", "/a", "1", "2");
      const asked = script.permission("call-2");
      script.answer(asked, "yes");
      script.decision(asked, "yes");
    });
    script.turn("Second", undefined, "cancelled");
    const log = SessionLog.of("s-1", script.entries);
    const { stretches, marks } = pastOf(log.view(), log);
    expect(stretches.map(({ title, state }) => [title, state])).toEqual([
      ["First", "ended"],
      ["Second", "cancelled"],
    ]);
    expect(stretches[0]!.from).toBeLessThan(stretches[0]!.to);
    expect(stretches[0]!.to).toBeLessThanOrEqual(stretches[1]!.from);
    expect(stretches[1]!.to).toBe(log.length);
    expect(marks.map(({ kind }) => kind)).toEqual(["changed", "request"]);
  });
});

describe("playing", () => {
  const at = (id: number, ms: number): Entry =>
    ({ id, at: new Date(ms).toISOString(), direction: "fromAgent", envelope: { jsonrpc: "2.0", method: "x" } }) as LogEvent;

  it("takes the log's own time, at the speed that is wanted, but never waits long", () => {
    const log = SessionLog.of("s-1", [at(1, 0), at(2, 100), at(3, 200), at(4, 60_000)]);
    const player = new Player(log, 1);
    expect(player.advance(99, 1)).toBe(1);
    expect(player.advance(1, 1)).toBe(2);
    expect(player.advance(50, 2)).toBe(3);
    expect(player.advance(999, 1)).toBe(3);
    expect(player.advance(1, 1)).toBe(4);
    expect(player.isOver).toBe(true);
    expect(player.advance(1_000, 16)).toBe(4);
  });

  it("goes on when the log does", () => {
    const log = new SessionLog("s-1", (call) => call());
    log.append(at(1, 0));
    const player = new Player(log, 1);
    expect(player.isOver).toBe(true);
    log.append(at(2, 10));
    expect(player.advance(10, 1)).toBe(2);
  });
});
