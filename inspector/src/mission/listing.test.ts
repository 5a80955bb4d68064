import type { SessionInfo } from "sandboxagent";
import { describe, expect, it } from "vitest";

import { ALL, costText, countsOf, listed, tokensText, usedBy } from "./listing.js";

function session(name: string, facts: Partial<SessionInfo> = {}): SessionInfo {
  return {
    sessionId: name,
    agent: "mock",
    cwd: "/srv/app",
    title: name,
    createdAt: "2026-11-16T09:00:00.000Z",
    updatedAt: "2026-11-16T09:00:00.000Z",
    ended: false,
    resumable: true,
    running: false,
    eventCount: 3,
    pending: 0,
    model: null,
    mode: null,
    terminationInfo: null,
    metadata: {},
    activity: { kind: null, said: "", turnStartedAt: null, tokens: null, context: null, cost: null },
    ...facts,
  };
}

const names = (sessions: readonly SessionInfo[]): string[] => sessions.map(({ sessionId }) => sessionId);

describe("mission control", () => {
  const sessions = [
    session("idle"),
    session("over", { ended: true, resumable: false }),
    session("works", { running: true, agent: "claude", activity: { ...session("x").activity, said: "Fixing the Parser" } }),
    session("asks", { running: true, pending: 1 }),
    session("stopped", { ended: true, createdAt: "2026-11-16T09:30:00.000Z" }),
    session("newer", { createdAt: "2026-11-16T10:00:00.000Z" }),
  ];

  it("has what waits first, then what runs, then the newest", () => {
    expect(names(listed(sessions, ALL))).toEqual(["asks", "works", "newer", "stopped", "idle", "over"]);
  });

  it("keeps its order while sessions speak", () => {
    const later = sessions.map((each) => ({ ...each, updatedAt: "2026-11-16T11:00:00.000Z" })).toReversed();
    expect(names(listed(later, ALL))).toEqual(names(listed(sessions, ALL)));
  });

  it("finds sessions by state, agent and words, also by what was said last", () => {
    expect(names(listed(sessions, { ...ALL, state: "running" }))).toEqual(["works"]);
    expect(names(listed(sessions, { ...ALL, agent: "claude" }))).toEqual(["works"]);
    expect(names(listed(sessions, { ...ALL, text: "parser  fixing" }))).toEqual(["works"]);
    expect(names(listed(sessions, { ...ALL, text: "nothing" }))).toEqual([]);
  });

  it("counts them, and what they have used", () => {
    expect(countsOf(sessions)).toEqual({ all: 6, waiting: 1, running: 1, idle: 3, ended: 1 });
    const used = { ...session("x").activity, tokens: 1200, cost: { amount: 0.5, currency: "USD" } };
    expect(usedBy([session("a", { activity: used }), session("b", { activity: used })])).toEqual({
      tokens: 2400,
      cost: { amount: 1, currency: "USD" },
    });
    expect([tokensText(950), tokensText(1200), tokensText(24_100), tokensText(3_200_000)]).toEqual(["950", "1.2k", "24k", "3.2M"]);
    expect(costText({ amount: 0.1234, currency: "USD" })).toBe("$0.123");
    expect(costText({ amount: 1, currency: "no such" })).toBe("1.00 no such");
  });
});
