/** The past and the present of a session, typed: `history`, `follow`, and the state that `follow` keeps. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import {
  type Following,
  InvalidCall,
  type SandboxAgent,
  type Session,
  type SessionEvent,
  type SessionView,
  reduce,
} from "sandboxagent";

import { Proxy } from "./support/proxy.js";
import { TestServer, program } from "./support/server.js";
import { all, eventually, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const PERMISSION = { toolCall: { toolCallId: "c" }, options: [{ optionId: "no", name: "No", kind: "reject_once" }] };

describe("reading a session", () => {
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
    session = await client.sessions.create({ cwd: server.work, title: "A test" });
    return session;
  };

  test("the past has prompts, updates, requests and decisions as items, in their order", BOUNDED, async () => {
    await made();
    const turn = session.prompt(program(["ask", "session/request_permission", PERMISSION], ["say", "well"]));
    await eventually(() => session.requests().length === 1, "the request");
    await client.rejectPermission(session.requests()[0]!.id);
    await turn;

    const past = await all(session.history());

    const kinds = past.map(({ item }) => item.sessionUpdate);
    assert.deepEqual(kinds.slice(0, 4), ["session_opened", "prompt", "turn_started", "request"]);
    assert.deepEqual(kinds.slice(4).sort(), ["agent_message_chunk", "decision", "turn_ended"]);
    const [opened, prompt, started, request] = past.map(({ item }) => item);
    assert.ok(opened?.sessionUpdate === "session_opened" && prompt?.sessionUpdate === "prompt");
    assert.deepEqual([opened.cwd, opened.title], [server.work, "A test"]);
    assert.ok(started?.sessionUpdate === "turn_started" && request?.sessionUpdate === "request");
    assert.deepEqual([prompt.turnId, prompt.promptId], [started.turnId, turn.promptId]);
    assert.ok(request.request.kind === "permission");
    assert.deepEqual([request.request.toolCall.toolCallId, request.request.id], ["c", ""]);
    const positions = past.map(({ position }) => position);
    assert.deepEqual(positions, [...positions].sort((one, other) => one - other));
    assert.ok(past.every(({ at }) => at && !Number.isNaN(Date.parse(at))));
  });

  test("a request in the past that is still open has the id to answer it by", BOUNDED, async () => {
    await made();
    const turn = session.prompt(program(["ask", "session/request_permission", PERMISSION], ["wait_answer"]));
    await eventually(async () => (await session.pending()).length === 1, "the request");
    const [pending] = await session.pending();

    const following = session.follow();
    const seen = await firstLive(following);

    const opened = seen.flatMap(({ item }) => (item.sessionUpdate === "request" ? [item.request] : []));
    assert.deepEqual(opened.map(({ id }) => id), [pending!.id]);
    assert.deepEqual(following.view.pending.map(({ requestId }) => requestId), [pending!.id]);
    assert.equal(following.view.status, "waiting");
    await within(client.rejectPermission(opened[0]!.id));
    await turn;
    await following.return();
  });

  test("a range of the past begins and ends where it says", BOUNDED, async () => {
    await made();
    await session.prompt("one");
    const past = await all(session.history());
    const [first, last] = [past[1]!.position, past.at(-1)!.position];

    const middle = await all(session.history({ after: first, before: last }));

    assert.deepEqual(middle, past.slice(2, -1));
  });

  test("what is followed live is what the past has later, with the view of each moment", BOUNDED, async () => {
    await made();
    const following = session.follow();
    const seen: SessionEvent[] = [];
    const states = new Set<string>();
    const reading = (async () => {
      for await (const event of following) {
        seen.push(event);
        states.add(following.view.status);
        assert.ok(following.view.position >= event.position);
      }
    })();

    await session.prompt(program(["flood", 200, 10]));
    proxy.cut();
    await session.prompt("cut");
    await server.restart();
    await within(session.prompt("restarted"));
    await session.terminate();
    await within(reading);

    assert.deepEqual(seen, await all(session.history()));
    assert.deepEqual(following.view, reduce(await logOf(session)));
    assert.deepEqual([...states].sort(), ["ended", "idle", "running"]);
    assert.equal(following.isLive, true);
  });

  test("the last event of the past says that it is live from here on", BOUNDED, async () => {
    await made();
    await session.prompt("one");
    const past = await all(session.history());
    const following = session.follow();

    const before = await firstLive(following);

    assert.deepEqual(before, past);
    assert.equal(following.view.turns.length, 1);
    const next = following.next();
    await session.prompt("two");
    const { value } = await within(next);
    assert.ok(value && value.item.sessionUpdate === "prompt");
    await following.return();
  });

  test("a stored view continues in another client, with what came meanwhile", BOUNDED, async () => {
    await made();
    await session.prompt("one");
    const first = session.follow();
    await firstLive(first);
    await first.return();
    const stored = JSON.stringify(first.view);
    await session.prompt("two");

    const other = await server.connect();
    const elsewhere = await other.sessions.attach(session.id);
    const following = elsewhere.follow({ view: JSON.parse(stored) as SessionView });
    const rest = await firstLive(following);

    assert.equal(rest[0]?.item.sessionUpdate, "prompt");
    const whole = JSON.stringify(reduce(await logOf(session)));
    assert.deepEqual(JSON.parse(JSON.stringify(following.view)), JSON.parse(whole));
    await other.close();
  });

  test("a view from the middle begins with a gap, and what follows is there", BOUNDED, async () => {
    await made();
    await session.prompt("one");
    const start = (await logOf(session)).at(-1)!.id;
    await session.prompt("two");
    const following = session.follow({ after: start });

    await firstLive(following);

    const [gap, ...others] = following.view.turns.flatMap(({ items }) => items);
    assert.ok(gap?.type === "gap");
    assert.deepEqual([gap.after, gap.resumesAt], [0, start + 1]);
    assert.deepEqual(
      others.map(({ type }) => type),
      ["user", "text"],
    );
    await following.return();
  });

  test("a place and a view at once, and a view that is none, are refused", BOUNDED, async () => {
    await made();
    const following = session.follow();
    const { view } = following;

    assert.throws(() => session.follow({ after: 3, view }), InvalidCall);
    assert.throws(() => session.follow({ view: {} as SessionView }), InvalidCall);
    await following.return();
  });

  test("requests that wait are listed as what they are, and can be told apart", BOUNDED, async () => {
    await made();
    const turn = session.prompt(program(["ask", "session/request_permission", PERMISSION], ["wait_answer"]));
    await eventually(async () => (await session.pending()).length === 1, "the request");

    const [request] = await session.pending();

    assert.ok(request?.kind === "permission");
    assert.deepEqual([request.sessionId, request.options], [session.id, PERMISSION.options]);
    assert.ok(request.askedAt && !Number.isNaN(Date.parse(request.askedAt)));
    assert.match(request.id, /^rq_/);
    await eventually(() => session.requests().length === 1, "the request here");
    await client.rejectPermission(request.id);
    await turn;
    assert.deepEqual(await session.pending(), []);
  });
});

/** The events of the past, until it is live. */
async function firstLive(following: Following): Promise<SessionEvent[]> {
  const seen: SessionEvent[] = [];
  await until(following, (event) => {
    seen.push(event);
    return following.isLive;
  });
  return seen;
}
