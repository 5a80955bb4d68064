/** Sessions: making, finding, taking up, changing and ending them; and what happens in them, whoever causes it. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import {
  ClientError,
  RequestError,
  SandboxAgent,
  SandboxAgentError,
  ServerProblem,
  type SessionEnded,
  type SessionItem,
  textOf,
} from "sandboxagent";

import { TestServer, program, scripted } from "./support/server.js";
import { all, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("sessions", () => {
  let server: TestServer;
  let client: SandboxAgent;

  before(async () => {
    server = await TestServer.start([], { isolated: scripted([], { isolation: "session" }) });
    client = await server.connect();
  });

  after(async () => {
    await client.close();
    await server.close();
  });

  test("a session is made with everything that was asked for", BOUNDED, async () => {
    const session = await client.sessions.create("mock", {
      cwd: server.work,
      title: "Fix the build",
      model: "mock-large",
      mode: "plan",
      metadata: { ticket: "A-1" },
      sessionId: "my-task",
    });

    const info = await session.info();

    assert.deepEqual(
      [info.agent, info.cwd, info.title, info.model, info.mode, info.alias],
      ["mock", server.work, "Fix the build", "mock-large", "plan", "my-task"],
    );
    assert.equal(info.metadata["ticket"], "A-1");
    assert.deepEqual([session.agent, session.cwd, session.warnings], ["mock", server.work, []]);
    assert.equal((await client.sessions.get("my-task")).sessionId, session.id);
  });

  test("what cannot be had is a warning", BOUNDED, async () => {
    const session = await client.sessions.create("mock", { cwd: server.work, model: "gigantic" });

    assert.equal(session.warnings.length, 1);
    assert.match(session.warnings[0]!, /gigantic/);
  });

  test("variables are for one session alone", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work, env: { COLOUR: "red" } });
    const other = await client.sessions.create({ cwd: server.work });

    assert.equal(await session.prompt(program(["env", "COLOUR"])).text(), '"red"');
    assert.equal(await other.prompt(program(["env", "COLOUR"])).text(), "null");
  });

  test("rules decide before anybody is asked", BOUNDED, async () => {
    const permissions = [{ kind: "edit", action: "reject", reason: "Not today." }];
    const session = await client.sessions.create("mock", { cwd: server.work, permissions });

    const items = await all(session.prompt("permission"));

    const decision = items.find((item) => item.sessionUpdate === "decision");
    assert.ok(decision?.sessionUpdate === "decision");
    assert.deepEqual([decision.outcome, decision.by.kind, decision.reason], ["rejected", "rule", "Not today."]);
  });

  test("a session needs a directory when the server is elsewhere", BOUNDED, async () => {
    await assert.rejects(
      client.sessions.create(),
      (error) => error instanceof ClientError && /cwd/.test(error.message),
    );
    await assert.rejects(client.sessions.create({ cwd: "/nowhere/at/all" }), RequestError);
  });

  test("a session needs an agent when the client has none", BOUNDED, async () => {
    const other = await server.connect({ agent: undefined as never });

    await assert.rejects(other.sessions.create({ cwd: server.work }), /no agent is named/);
    const session = await other.sessions.create("mock", { cwd: server.work });
    assert.equal((await other.sessions.create({ cwd: server.work })).agent, "mock");
    assert.equal(session.agent, "mock");
    await other.close();
  });

  test("an agent that nobody knows is a ServerProblem, and the next one is tried anew", BOUNDED, async () => {
    const other = await server.connect({ agent: undefined as never });

    await assert.rejects(
      other.sessions.create("cluade", { cwd: server.work }),
      (error) =>
        error instanceof ServerProblem && error.slug === "unknown-agent" && Array.isArray(error.fields["known"]),
    );
    assert.equal(await (await other.sessions.create("scripted", { cwd: server.work })).prompt("hi").text(), "hi");
    await assert.rejects(other.sessions.create("cluade", { cwd: server.work }), RequestError);
    await other.close();
  });

  test("all sessions are listed, newest first, or those of a directory", BOUNDED, async () => {
    const { path } = await client.files.stat(await client.files.mkdir(`${server.work}/listed`));
    const made = [await client.sessions.create({ cwd: path }), await client.sessions.create({ cwd: path })];

    const listed = await all(client.sessions.list({ cwd: path }));

    assert.deepEqual(
      listed.map((info) => info.sessionId),
      made.map((session) => session.id).reverse(),
    );
    assert.ok((await all(client.sessions.list())).length > listed.length);
  });

  test("a session that is not there is a ServerProblem", BOUNDED, async () => {
    const missing = (error: unknown): boolean => error instanceof ServerProblem && error.slug === "session-not-found";

    await assert.rejects(client.sessions.get("nowhere"), missing);
    await assert.rejects(client.sessions.attach("nowhere"), missing);
  });

  test("whoever attaches sees what others do, and their prompts", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const other = await server.connect({ agent: undefined as never });
    const seen = await other.sessions.attach(session.id);
    const updates = seen.updates();

    await session.prompt(program(["say", "hello"]));

    const items: SessionItem[] = [];
    for await (const item of updates) {
      items.push(item);
      if (item.sessionUpdate === "turn_ended") break;
    }
    assert.deepEqual(
      items.map((item) => item.sessionUpdate),
      ["turn_started", "user_message_chunk", "agent_message_chunk", "turn_ended"],
    );
    assert.ok(items.at(-1)?.sessionUpdate === "turn_ended");
    assert.deepEqual([seen.id, seen.agent, seen.cwd], [session.id, "scripted", server.work]);
    await other.close();
  });

  test("the sender does not get its own prompt back", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();

    await session.prompt("hello");

    const seen = await until(updates, (item) => item.sessionUpdate !== "turn_started");
    assert.equal(textOf(seen), "hello");
  });

  test("updates tell of metadata, of modes, and of the end, which is the last", BOUNDED, async () => {
    const session = await client.sessions.create("mock", { cwd: server.work });
    const updates = session.updates();

    assert.deepEqual((await session.setMetadata({ ticket: "A-2" }))["ticket"], "A-2");
    await session.setMode("plan");
    await session.terminate();

    const kinds = (await within(all(updates))).map((item) => item.sessionUpdate);
    assert.ok(kinds.includes("metadata_update") && kinds.includes("current_mode_update"), kinds.join());
    assert.equal(kinds.at(-1), "session_ended");
    await assert.rejects(async () => await session.prompt("more"), RequestError);
  });

  test("a loop that is left hears no more, also when somebody waits in it", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();
    const waiting = updates.next();

    await updates.return();

    assert.equal((await within(waiting)).done, true);
    assert.equal((await updates.next()).done, true);
  });

  test("models, modes and options are read and set", BOUNDED, async () => {
    const session = await client.sessions.create("mock", { cwd: server.work });

    assert.deepEqual(
      (await session.models()).availableModels.map((model) => model.modelId),
      ["mock-small", "mock-large"],
    );
    await session.setModel("mock-large");
    assert.equal((await session.models()).currentModelId, "mock-large");
    assert.equal((await session.modes()).currentModeId, "default");
    await session.setMode("yolo");
    assert.equal((await session.modes()).currentModeId, "yolo");
    assert.ok(session.configOptions.length > 0);
    const option = session.configOptions.find((each) => each.category === "model")!;
    const options = await session.setConfigOption(option.id, "mock-small");
    assert.equal(options, session.configOptions);
    assert.equal((await session.models()).currentModelId, "mock-small");
    await assert.rejects(
      session.setModel("gigantic"),
      (error) => error instanceof RequestError && error.code === -32602,
    );
  });

  test("who attaches knows the modes and options too, and hears of changes", BOUNDED, async () => {
    const session = await client.sessions.create("mock", { cwd: server.work });
    const other = await server.connect();
    const seen = await other.sessions.attach(session.id);
    const updates = seen.updates();

    assert.deepEqual(await seen.modes(), await session.modes());
    assert.deepEqual(seen.configOptions, session.configOptions);
    await session.setMode("plan");
    await until(updates, (item) => item.sessionUpdate === "current_mode_update");

    assert.equal((await seen.modes()).currentModeId, "plan");
    await other.close();
  });

  test("the history has everything, in order, page by page", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    await session.prompt(program(["flood", 1200, 10]));

    const events = await logOf(session);

    const ids = events.map((event) => event.id);
    assert.deepEqual(
      ids,
      ids.toSorted((a, b) => a - b),
    );
    const updates = events.filter((event) => "method" in event.envelope && event.envelope.method === "session/update");
    assert.equal(updates.length, 1200);
    assert.deepEqual([...new Set(events.map((event) => event.direction))].sort(), [
      "fromAgent",
      "fromClient",
      "fromServer",
    ]);
    const some = await logOf(session, { after: ids[3]!, before: ids[7]! });
    assert.deepEqual(
      some.map((event) => event.id),
      ids.slice(4, 7),
    );
  });

  test("a session that was closed is resumed by a prompt, or by hand", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    await session.prompt("before");
    await session.close();
    assert.equal((await session.info()).ended, true);

    assert.equal(await session.prompt("after").text(), "after");
    await session.close();
    const resumed = await client.sessions.resume(session.id);

    assert.equal(resumed, session);
    assert.equal((await session.info()).ended, false);
  });

  test("a fork is a session of its own", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });

    const fork = await session.fork();

    assert.notEqual(fork.id, session.id);
    assert.equal((await fork.info()).metadata["forkedFrom"], session.id);
    assert.equal(await fork.prompt("in the fork").text(), "in the fork");
  });

  test("a session that is detached is silent, and goes on", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();

    await session.detach();

    assert.equal((await within(updates.next())).done, true);
    const again = await client.sessions.attach(session.id);
    assert.equal(await again.prompt("still there").text(), "still there");
  });

  test("updates tell of a crash and go on; one catch is enough", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();
    const following = session.follow();

    const failure = await session.prompt(program(["exit", 3])).then(
      () => undefined,
      (error: unknown) => error,
    );

    assert.ok(failure instanceof SandboxAgentError);
    assert.deepEqual([failure.slug, failure.fields["exitCode"]], ["agent-exited", 3]);
    const crashed = await until(updates, (item) => item.sessionUpdate === "session_ended");
    assert.equal((crashed as SessionEnded).reason, "error");
    assert.equal(await session.prompt("back").text(), "back");
    await until(updates, (item) => textOf(item) === "back");
    await session.terminate();
    const ended = (await within(all(updates))).at(-1) as SessionEnded;
    assert.deepEqual([ended.sessionUpdate, ended.reason], ["session_ended", "terminated"]);
    assert.ok((await within(all(following))).length > 3);
  });

  for (const behind of [false, true]) {
    test(`readers of a deleted session end cleanly, ${behind ? "behind" : "live"}`, BOUNDED, async () => {
      const other = await server.connect({ buffer: 1 });
      const session = await client.sessions.create({ cwd: server.work });
      const elsewhere = await other.sessions.attach(session.id);
      const updates = elsewhere.updates();
      const readers = [session.follow(), elsewhere.follow()];
      const reading = behind ? [] : readers.map((each) => all(each));

      await session.prompt(program(["flood", 20, 100]));
      await client.sessions.delete(session.id);

      await within(Promise.all(behind ? readers.map((each) => all(each)) : reading));
      const ended = (await within(all(updates))).at(-1) as SessionEnded;
      assert.deepEqual([ended.sessionUpdate, ended.reason], ["session_ended", "deleted"]);
      await other.close();
    });
  }

  test("everything that is thrown is of one family, with slug, message and fields", BOUNDED, async () => {
    const session = await client.sessions.create("mock", { cwd: server.work });
    const nowhere = SandboxAgent.connect("http://127.0.0.1:1", { reconnectTimeout: 0 });
    const failures = await Promise.all(
      [
        client.sessions.get("no such"),
        session.setMode("no such"),
        client.sessions.create("mock"),
        client.request("no/such"),
        nowhere,
      ].map((call) => call.then(() => undefined, (error: unknown) => error)),
    );

    const found = failures.map((error) => {
      assert.ok(error instanceof SandboxAgentError && error instanceof ClientError, String(error));
      assert.ok(error.message && typeof error.fields === "object");
      return error.slug;
    });
    assert.deepEqual(found, [
      "session-not-found",
      "invalid-params",
      "invalid-call",
      "request-failed",
      "connection-lost",
    ]);
  });

  test("a session that is deleted is gone", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });

    await client.sessions.delete(session.id);

    await assert.rejects(client.sessions.get(session.id), ServerProblem);
  });

  test("terminate ends a session of anybody", BOUNDED, async () => {
    const other = await server.connect();
    const session = await other.sessions.create({ cwd: server.work });

    await client.sessions.terminate(session.id);

    const info = await session.info();
    assert.deepEqual([info.ended, info.resumable], [true, false]);
    await other.close();
  });

  test("one client talks to several agents", BOUNDED, async () => {
    const [first, second] = await Promise.all([
      client.sessions.create("mock", { cwd: server.work }),
      client.sessions.create("scripted", { cwd: server.work }),
    ]);

    assert.match(await first.prompt("hello").text(), /You said: hello/);
    assert.equal(await second.prompt("hello").text(), "hello");
  });
});
