/** A session's log as it is written: what was, then what comes, with ids and without a hole. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { type Gap, type LogEvent, type SandboxAgent, type Session } from "sandboxagent";

import { Proxy } from "./support/proxy.js";
import { TestServer, program } from "./support/server.js";
import { all, eventually, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("following", () => {
  let server: TestServer;
  let proxy: Proxy;
  let client: SandboxAgent;
  let session: Session;

  before(async () => {
    server = await TestServer.start();
    proxy = await Proxy.open(() => server.url);
    client = await server.connect({ url: proxy.url });
  });

  after(async () => {
    await client.close();
    await proxy.close();
    await server.close();
  });

  const made = async (): Promise<Session> => {
    session = await client.sessions.create({ cwd: server.work });
    return session;
  };

  test("what was comes first, then each event as it is written", BOUNDED, async () => {
    await made();
    await session.prompt("before");
    const following = session.log();
    const seen: (LogEvent | Gap)[] = [];
    const reading = (async () => {
      for await (const event of following) {
        seen.push(event);
        if (says(event, "the last")) return;
      }
    })();

    await session.prompt(program(["flood", 700, 10]));
    await session.setMetadata({ now: true });
    await session.prompt(program(["say", "the last"]));

    await within(reading);
    assert.deepEqual(seen, (await logOf(session)).slice(0, seen.length));
    assert.ok(seen.length > 700);
  });

  test("it begins after an id", BOUNDED, async () => {
    await made();
    await session.prompt("one");
    const [, , third] = await logOf(session);

    const following = session.log({ after: third!.id });

    const first = (await within(following.next())).value as LogEvent;
    assert.ok(first.id > third!.id);
    await following.return();
  });

  test("what agents ask, and what they are answered, is in it", BOUNDED, async () => {
    await made();
    const following = session.log();
    const permission = {
      toolCall: { toolCallId: "c" },
      options: [{ optionId: "no", name: "No", kind: "reject_once" }],
    };
    const turn = session.prompt(program(["ask", "session/request_permission", permission], ["wait_answer"]));

    await until(
      following,
      (event) => "envelope" in event && event.direction === "fromAgent" && says(event, '"options"'),
    );
    await eventually(() => session.requests().length === 1, "the request");
    await client.rejectPermission(session.requests()[0]!.id);

    await until(
      following,
      (event) => "envelope" in event && event.direction === "fromClient" && says(event, '"optionId":"no"'),
    );
    await turn;
    await following.return();
  });

  test(
    "cuts and restarts leave no hole, and the end of a session that can be resumed is not the end",
    BOUNDED,
    async () => {
      await made();
      const following = session.log();
      const seen: LogEvent[] = [];
      const reading = (async () => {
        for await (const event of following) if ("envelope" in event) seen.push(event);
      })();

      await session.prompt(program(["flood", 200, 10]));
      proxy.cut();
      await session.prompt("cut");
      await server.restart();
      await within(session.prompt("restarted"));
      assert.deepEqual(await session.terminate(), { terminated: true, reason: "terminated", terminatedBy: "daemon" });

      await within(reading, "the end of a session that was terminated");
      assert.deepEqual(seen, await logOf(session));
    },
  );

  test("it ends when we detach, and when it is left", BOUNDED, async () => {
    await made();
    const following = session.log({ after: (await logOf(session)).at(-1)!.id });
    const left = session.log({ after: (await logOf(session)).at(-1)!.id });
    const [waiting, leaving] = [all(following), left.next()];

    await within(left.return());
    await session.detach();

    assert.equal((await within(leaving)).done, true);
    await within(waiting);
  });
});

function says(event: LogEvent | Gap, text: string): boolean {
  return JSON.stringify(event).includes(text);
}
