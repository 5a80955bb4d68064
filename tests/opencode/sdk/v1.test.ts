/** Every call of OpenCode's SDK (the root export) that the bridge answers. */

import assert from "node:assert/strict";
import { suite, test } from "node:test";

import { createOpencodeClient, type Event } from "@opencode-ai/sdk";

import { Events, LONGEST, can, given, model, ok, options, refused, textOf } from "./support.ts";

const client = createOpencodeClient(options);
const unknown = { id: "ses_0000000000000000000000unknown" };

async function opened(): Promise<{ id: string }> {
  const session = ok(await client.session.create({ body: { title: "A title" } }));
  return { id: session.id };
}

function said(text: string): { model: typeof model; parts: [{ type: "text"; text: string }] } {
  return { model, parts: [{ type: "text", text }] };
}

async function listening(): Promise<Events<Event>> {
  return await Events.open<Event>(client.event.subscribe());
}

suite("what there is", { timeout: LONGEST, concurrency: true }, () => {
  test("the configuration", async () => {
    assert.equal(typeof ok(await client.config.get()), "object");
    assert.equal(typeof ok(await client.config.update({ body: {} })), "object");
  });

  test("agents are providers, with their models", async () => {
    const { providers, default: chosen } = ok(await client.config.providers());
    const provider = providers.find((each) => each.id === can.provider);
    assert.ok(provider);
    for (const id of can.model_ids) assert.equal(provider.models[id]?.id, id);
    assert.ok(chosen[can.provider]);
    const { all, connected } = ok(await client.provider.list());
    assert.ok(all.some((each) => each.id === can.provider));
    assert.ok(connected.includes(can.provider));
    assert.equal(typeof ok(await client.provider.auth()), "object");
  });

  test("modes are agents", async () => {
    const agents = ok(await client.app.agents());
    assert.ok(agents.some((agent) => agent.mode === "primary"));
  });

  test("the project and its folder", async () => {
    assert.equal(ok(await client.path.get()).directory, given.directory);
    const current = ok(await client.project.current());
    assert.ok(ok(await client.project.list()).some((project) => project.id === current.id));
    assert.equal(typeof ok(await client.vcs.get()), "object");
  });

  test("what a server of ours has none of", async () => {
    assert.ok(Array.isArray(ok(await client.command.list())));
    assert.equal(typeof ok(await client.mcp.status()), "object");
    assert.ok(Array.isArray(ok(await client.lsp.status())));
    assert.ok(Array.isArray(ok(await client.formatter.status())));
    assert.ok(Array.isArray(ok(await client.tool.ids())));
    assert.equal(ok(await client.app.log({ body: { service: "test", level: "info", message: "hello" } })), true);
  });

  test("files", async () => {
    const names = ok(await client.file.list({ query: { path: "." } })).map((node) => node.name);
    assert.ok(names.includes("poem.txt"), names.join());
    const read = ok(await client.file.read({ query: { path: "poem.txt" } }));
    assert.equal(read.content, "roses are red");
    assert.ok(Array.isArray(ok(await client.file.status())));
    // OpenCode itself would have to download what it searches with.
    if (!given.bridge) return;
    assert.deepEqual(ok(await client.find.files({ query: { query: "poem" } })), ["poem.txt"]);
    const [found] = ok(await client.find.text({ query: { pattern: "roses" } }));
    assert.equal(found?.line_number, 1);
  });
});

suite("sessions", { timeout: LONGEST, concurrency: true }, () => {
  test("one is made, found, renamed and deleted", async () => {
    const events = await listening();
    const path = await opened();
    const session = ok(await client.session.get({ path }));
    assert.equal(session.title, "A title");
    assert.equal(session.directory, given.directory);
    assert.ok(ok(await client.session.list()).some((each) => each.id === path.id));
    assert.equal(ok(await client.session.update({ path, body: { title: "Another" } })).title, "Another");
    assert.deepEqual(ok(await client.session.children({ path })), []);
    assert.deepEqual(ok(await client.session.messages({ path })), []);
    assert.equal(ok(await client.session.delete({ path })), true);
    const [status, error] = refused(await client.session.get({ path }));
    assert.equal(status, 404);
    assert.deepEqual(error, { name: "NotFoundError", data: { message: `Session not found: ${path.id}` } });
    await events.until((event) => event.type === "session.deleted" && event.properties.info.id === path.id);
    const told = events.seen.filter((event) => JSON.stringify(event).includes(path.id));
    assert.equal(told[0]?.type, "session.created");
    await events.close();
  });

  test("a child is found by its parent", async () => {
    const path = await opened();
    const child = ok(await client.session.create({ body: { parentID: path.id } }));
    assert.equal(child.parentID, path.id);
    assert.deepEqual(
      ok(await client.session.children({ path })).map((each) => each.id),
      [child.id],
    );
  });

  test("newer ones come first, and their ids sort so", async () => {
    const older = await opened();
    const newer = await opened();
    assert.ok(newer.id < older.id);
    const ids = ok(await client.session.list()).map((session) => session.id);
    assert.ok(ids.indexOf(newer.id) < ids.indexOf(older.id));
  });

  test("an unknown one is not found", async () => {
    const path = unknown;
    const answers = await Promise.all([
      client.session.get({ path }),
      client.session.messages({ path }),
      client.session.prompt({ path, body: said("hello") }),
      client.session.promptAsync({ path, body: said("hello") }),
      client.session.update({ path, body: { title: "x" } }),
      client.session.delete({ path }),
    ]);
    for (const answer of answers) {
      const [status, error] = refused(answer);
      assert.equal(status, 404);
      assert.equal((error as { name: string }).name, "NotFoundError");
    }
  });
});

suite("turns", { timeout: LONGEST, concurrency: true }, () => {
  test("a prompt is answered with the whole message", async () => {
    const path = await opened();
    const answer = ok(await client.session.prompt({ path, body: said(can.hello.prompt) }));
    assert.match(textOf(answer), new RegExp(can.hello.shows));
    assert.equal(answer.info.role, "assistant");
    assert.equal(answer.info.modelID, model.modelID);
    assert.ok(answer.info.time.completed);

    const messages = ok(await client.session.messages({ path }));
    assert.deepEqual(
      messages.map(({ info }) => info.role),
      ["user", "assistant"],
    );
    const [user, assistant] = messages;
    assert.ok(user && assistant && assistant.info.role === "assistant");
    assert.equal(textOf(user), can.hello.prompt);
    assert.equal(assistant.info.parentID, user.info.id);
    assert.ok(user.info.id < assistant.info.id);
    const again = ok(await client.session.message({ path: { ...path, messageID: assistant.info.id } }));
    assert.deepEqual(again, assistant);
    const newest = ok(await client.session.messages({ path, query: { limit: 1 } }));
    assert.deepEqual(newest, [assistant]);
  });

  test("a prompt that is not waited for shows in events", async () => {
    const path = await opened();
    const events = await listening();
    const { response } = await client.session.promptAsync({ path, body: said(can.thought.prompt) });
    assert.equal(response.status, 204);
    await events.until((event) => event.type === "session.idle" && event.properties.sessionID === path.id);
    await events.close();
    const [, message] = ok(await client.session.messages({ path }));
    assert.ok(message);
    const kinds = message.parts.map((part) => part.type);
    assert.ok(kinds.indexOf("reasoning") < kinds.indexOf("text"));
    assert.match(textOf(message), new RegExp(can.thought.says));
    const ids = message.parts.map((part) => part.id);
    assert.deepEqual(ids, ids.toSorted());
  });

  test("one that goes on is busy until it is aborted", async () => {
    const path = await opened();
    const events = await listening();
    const prompt = client.session.prompt({ path, body: said(can.endless.prompt) });
    await events.until((event) => event.type === "session.status" && event.properties.sessionID === path.id);
    assert.equal(ok(await client.session.status())[path.id]?.type, "busy");
    assert.equal(ok(await client.session.abort({ path })), true);
    const { info } = ok(await prompt);
    assert.equal(info.error?.name, "MessageAbortedError");
    await events.until((event) => event.type === "session.idle" && event.properties.sessionID === path.id);
    await events.close();
    assert.equal(ok(await client.session.abort({ path })), true);
  });

  test("a permission is asked for and answered", async () => {
    const path = await opened();
    const events = await listening();
    const prompt = client.session.prompt({ path, body: said(can.permission.prompt) });
    // The root export has no type for it.
    const asked = (await events.until((event) => (event.type as string) === "permission.asked")) as unknown as {
      properties: { id: string; sessionID: string };
    };
    assert.equal(asked.properties.sessionID, path.id);
    const reply = { path: { ...path, permissionID: asked.properties.id }, body: { response: "once" as const } };
    assert.equal(ok(await client.postSessionIdPermissionsPermissionId(reply)), true);
    const answer = ok(await prompt);
    assert.match(textOf(answer), new RegExp(can.permission.says));
    await events.close();
    const [status] = refused(await client.postSessionIdPermissionsPermissionId(reply));
    assert.equal(status, 404);
  });

  test("a fork has the messages, and a life of its own", async () => {
    const path = await opened();
    ok(await client.session.prompt({ path, body: said(can.hello.prompt) }));
    const fork = ok(await client.session.fork({ path, body: {} }));
    assert.notEqual(fork.id, path.id);
    const copied = ok(await client.session.messages({ path: { id: fork.id } }));
    assert.deepEqual(
      copied.map(({ info }) => info.role),
      ["user", "assistant"],
    );
    ok(await client.session.prompt({ path: { id: fork.id }, body: said(can.again.prompt) }));
    assert.equal(ok(await client.session.messages({ path })).length, 2);
    assert.equal(ok(await client.session.messages({ path: { id: fork.id } })).length, 4);
  });

  test("a command of the shell is run in the session's folder", async () => {
    const path = await opened();
    const agent = ok(await client.app.agents()).find((each) => each.mode === "primary");
    assert.ok(agent);
    const body = { agent: agent.name, model, command: "cat poem.txt" };
    ok(await client.session.shell({ path, body }));
    const parts = ok(await client.session.messages({ path })).flatMap((message) => message.parts);
    const tool = parts.find((part) => part.type === "tool");
    assert.ok(tool?.type === "tool" && tool.state.status === "completed");
    assert.equal(tool.tool, "bash");
    assert.match(tool.state.output, /roses are red/);
  });

  test("todos, and what has changed", async () => {
    const path = await opened();
    assert.deepEqual(ok(await client.session.todo({ path })), []);
    assert.ok(Array.isArray(ok(await client.session.diff({ path }))));
  });
});

suite("what agents have none of", { timeout: LONGEST, skip: !given.bridge, concurrency: true }, () => {
  test("to revert is refused", async () => {
    const path = await opened();
    const [status] = refused(await client.session.revert({ path, body: { messageID: "msg_x" } }));
    assert.equal(status, 400);
    assert.equal(refused(await client.session.unrevert({ path }))[0], 400);
  });

  test("to share is refused", async () => {
    const path = await opened();
    assert.equal(refused(await client.session.share({ path }))[0], 400);
  });

  test("to summarize is refused when the agent cannot", async () => {
    const path = await opened();
    assert.equal(refused(await client.session.summarize({ path, body: model }))[0], 400);
  });
});
