import type { SessionInfo } from "sandboxagent";
import { describe, expect, it } from "vitest";

import type { Command } from "./commands.js";
import { choicesFor } from "./found.js";

const session = (sessionId: string, facts: Partial<SessionInfo> = {}): SessionInfo =>
  ({ sessionId, agent: "claude", cwd: "/srv/app", title: sessionId, updatedAt: "2026-11-16T09:00:00.000Z", pending: 0, ...facts }) as SessionInfo;
const command = (label: string): Command => ({ label, run: () => undefined });

const SESSIONS = [
  session("older"),
  session("newer", { updatedAt: "2026-11-17T09:00:00.000Z", title: "Rate limits" }),
  session("asks", { pending: 1, node: "eu-1" }),
];
const COMMANDS = [command("New session"), command("Rename session…"), command("Agents")];

const keysFor = (text: string): string[] => choicesFor(text, COMMANDS, SESSIONS).map(({ key }) => key);

describe("the palette", () => {
  it("begins with sessions that matter now, then what can be done", () => {
    expect(keysFor("")).toEqual([
      "session asks",
      "session newer",
      "session older",
      "command New session",
      "command Rename session…",
      "command Agents",
    ]);
  });

  it("finds by words, in any order: titles, agents, directories, ids, nodes", () => {
    expect(keysFor("limits RATE")).toEqual(["session newer"]);
    expect(keysFor("eu-1 claude")).toEqual(["session asks"]);
    expect(keysFor("session rename")).toEqual(["command Rename session…"]);
    expect(keysFor("nothing like that")).toEqual([]);
  });

  it("lists a few sessions of many, and what can be done is never pushed away", () => {
    const many = Array.from({ length: 500 }, (_, index) => session(`agents ${index}`));
    expect(choicesFor("", COMMANDS, many).length).toBeLessThan(20);
    expect(choicesFor("agents", COMMANDS, many)[0]?.key).toBe("command Agents");
    expect(choicesFor("agents", COMMANDS, many).length).toBeLessThan(60);
  });
});
