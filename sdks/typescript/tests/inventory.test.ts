/** All sessions of a server, kept up to date without asking again and again. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import type { Iteration, SandboxAgent, SessionChanges, SessionInfo } from "sandboxagent";

import { TestServer, program } from "./support/server.js";
import { within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("watching sessions", () => {
  let server: TestServer;
  let watcher: SandboxAgent;
  let other: SandboxAgent;

  before(async () => {
    server = await TestServer.start();
    watcher = await server.connect();
    other = await server.connect();
  });

  after(async () => {
    await watcher.close();
    await other.close();
    await server.close();
  });

  test("all come first, then what other clients do, then what they delete", BOUNDED, async () => {
    const old = await other.sessions.create({ cwd: server.work });
    await using watching = watcher.sessions.watch({ every: 1 });
    const first = await nextOf(watching);
    assert.equal(first.all, true);
    assert.ok(first.sessions.some(({ sessionId }) => sessionId === old.id));

    const made = await other.sessions.create({ cwd: server.work, title: "New here" });
    const turn = made.prompt(program(["say", "Half of it"], ["wait_cancel"]));
    const running = await until(watching, ({ sessions }) =>
      sessions.some(({ sessionId, activity }) => sessionId === made.id && activity.said === "Half of it"),
    );
    assert.equal(running.all, false);
    assert.ok(!running.sessions.some(({ sessionId }) => sessionId === old.id));

    await turn.cancel();
    const isIdle = ({ sessionId, running }: SessionInfo): boolean => sessionId === made.id && !running;
    await until(watching, ({ sessions }) => sessions.some(isIdle));

    await other.sessions.delete(old.id);
    await until(watching, ({ gone }) => gone.includes(old.id));
  });

  test("whoever leaves while nothing happens is let go at once", BOUNDED, async () => {
    const watching = watcher.sessions.watch();
    await nextOf(watching);
    const next = watching.next();
    await within(watching.return());
    assert.equal((await within(next)).done, true);
  });

  test("after a restart of the server all come again", BOUNDED, async () => {
    const client = await server.connect();
    const session = await client.sessions.create({ cwd: server.work });
    await session.prompt("hello");
    await using watching = client.sessions.watch({ every: 1 });
    await nextOf(watching);
    await server.restart();
    const again = await until(watching, ({ all }) => all);
    assert.ok(again.sessions.some(({ sessionId, ended }) => sessionId === session.id && ended));
    await client.close();
  });
});

async function nextOf(watching: Iteration<SessionChanges>): Promise<SessionChanges> {
  const { value, done } = await within(watching.next());
  assert.ok(!done && value);
  return value;
}

async function until(
  watching: Iteration<SessionChanges>,
  isWanted: (changes: SessionChanges) => boolean,
): Promise<SessionChanges> {
  for (;;) {
    const changes = await nextOf(watching);
    if (isWanted(changes)) return changes;
  }
}
