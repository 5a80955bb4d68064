import { describe, expect, it } from "vitest";
import type { SessionChanges, SessionInfo } from "sandboxagent";

import { NO_SESSIONS, merged } from "./inventory.js";

const session = (sessionId: string, minute: number, facts: Partial<SessionInfo> = {}): SessionInfo =>
  ({ sessionId, createdAt: `2026-11-16T10:${String(minute).padStart(2, "0")}:00.000Z`, pending: 0, ...facts }) as SessionInfo;
const all = (...sessions: SessionInfo[]): SessionChanges => ({ sessions, gone: [], all: true });
const some = (...sessions: SessionInfo[]): SessionChanges => ({ sessions, gone: [], all: false });

describe("the inventory", () => {
  it("has what is new first, keeps what is not told of, and counts what waits", () => {
    const first = merged(NO_SESSIONS, all(session("b", 2), session("a", 1)));
    const second = merged(first, some(session("c", 3, { pending: 2 })));
    expect(second.sessions.map(({ sessionId }) => sessionId)).toEqual(["c", "b", "a"]);
    expect(second.waiting).toBe(2);
    expect(second.sessions[1]).toBe(first.sessions[0]);
  });

  it("stays in its order when a session changes, and gives the others as the same objects", () => {
    const before = merged(NO_SESSIONS, all(session("b", 2), session("a", 1)));
    const after = merged(before, some(session("a", 1, { title: "Renamed" })));
    expect(after.sessions.map(({ sessionId }) => sessionId)).toEqual(["b", "a"]);
    expect(after.sessions[0]).toBe(before.sessions[0]);
    expect(after.sessions[1]?.title).toBe("Renamed");
  });

  it("is the same object when nothing has changed", () => {
    const before = merged(NO_SESSIONS, all(session("a", 1)));
    expect(merged(before, all(session("a", 1)))).toBe(before);
    expect(merged(before, some())).toBe(before);
  });

  it("forgets what was deleted, whether the server says so or lists all sessions again", () => {
    const before = merged(NO_SESSIONS, all(session("b", 2), session("a", 1)));
    expect(merged(before, { sessions: [], gone: ["b"], all: false }).sessions.map(({ sessionId }) => sessionId)).toEqual(["a"]);
    expect(merged(before, all(session("a", 1))).sessions.map(({ sessionId }) => sessionId)).toEqual(["a"]);
  });
});
