/** Under the surface: raw requests and notifications, the tap, opening, closing, and errors by name. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";

import {
  ClientError,
  ConnectionLost,
  type Envelope,
  ForeignAnswer,
  RequestError,
  SandboxAgent,
  ServerProblem,
} from "sandboxagent";

import { quiet } from "./support/logger.js";
import { TOKEN, TestServer, program } from "./support/server.js";
import { all, eventually, logOf, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

describe("under the surface", () => {
  let server: TestServer;

  before(async () => {
    server = await TestServer.start();
  });

  after(async () => {
    await server.close();
  });

  test("any method can be called, and an agent's own is passed on as it is", BOUNDED, async () => {
    await using client = await server.connect();

    const answer = await client.request<{ method: string; params: unknown }>("x/echo", { deep: [1, { er: null }] });

    assert.deepEqual([answer.method, answer.params], ["x/echo", { deep: [1, { er: null }] }]);
    await assert.rejects(
      client.request("x/nothing"),
      (error) => error instanceof RequestError && error.code === -32601,
    );
  });

  test("methods of ACP have their types", BOUNDED, async () => {
    await using client = await server.connect();

    const { sessionId } = await client.request("session/new", { cwd: server.work, mcpServers: [] });
    const { stopReason } = await client.request("session/prompt", {
      sessionId,
      prompt: [{ type: "text", text: "hi" }],
    });

    assert.equal(stopReason, "end_turn");
  });

  test("notifications reach the agent", BOUNDED, async () => {
    await using client = await server.connect();

    await client.notify("x/told", { what: 1 });

    await eventually(async () => {
      const { lines } = await client.request<{ lines: string[] }>("x/received");
      return lines.some((line) => line.includes("x/told"));
    });
  });

  test("requests that hang do not hold up others", BOUNDED, async () => {
    await using client = await server.connect();
    const hanging = Array.from({ length: 30 }, () => client.request<{ released: boolean }>("x/hang"));

    await client.request("x/echo");
    await eventually(async () => {
      const { lines } = await client.request<{ lines: string[] }>("x/received");
      return lines.filter((line) => line.includes("x/hang")).length >= 30;
    });
    await client.request("x/release");

    assert.deepEqual(
      await within(Promise.all(hanging)),
      hanging.map(() => ({ released: true })),
    );
  });

  test("a tap sees every envelope, with its place in the log, until it is stopped", BOUNDED, async () => {
    await using client = await server.connect();
    const seen: [string, Envelope, number | undefined][] = [];
    const stop = client.tap((...told) => seen.push(told));

    const session = await client.sessions.create({ cwd: server.work });
    await session.prompt("hello");
    stop();
    await session.prompt("unseen");

    const methods = seen.map(
      ([direction, envelope]) => `${direction} ${"method" in envelope ? envelope.method : "response"}`,
    );
    assert.deepEqual(methods, [
      "sent initialize",
      "received response",
      "sent session/new",
      "received response",
      "sent session/prompt",
      "received _sandboxagent/session/turn",
      "received session/update",
      "received _sandboxagent/session/turn",
      "received response",
    ]);
    const positions = seen.map(([, , position]) => position).filter((position) => position !== undefined);
    assert.deepEqual(
      positions,
      (await logOf(session)).map(({ id }) => id).filter((id) => positions.includes(id)),
    );
    assert.ok(!JSON.stringify(seen).includes("unseen"));
  });

  test("a tap that fails harms nobody", BOUNDED, async () => {
    await using client = await server.connect();
    client.tap(() => {
      throw new Error("a bug");
    });

    assert.equal(await (await client.sessions.create({ cwd: server.work })).prompt("hi").text(), "hi");
  });

  test("the connection is opened by the first thing that needs one, and once", BOUNDED, async () => {
    await using client = await server.connect();
    let opened = 0;
    client.tap((_, envelope) => {
      if ("method" in envelope && envelope.method === "initialize") opened += 1;
    });

    await client.health();
    await all(client.sessions.list());
    await client.agents.list();
    assert.equal(opened, 0);
    await Promise.all([client.request("x/echo"), client.sessions.create({ cwd: server.work }), client.pending()]);

    assert.equal(opened, 1);
  });

  test("a raw request needs an agent", BOUNDED, async () => {
    const client = await server.connect({ agent: undefined as never });

    await assert.rejects(
      client.request("x/echo"),
      (error) => error instanceof ClientError && /no agent is named/.test(error.message),
    );
    await client.close();
  });

  test("the server hears who it is, and what it can show", BOUNDED, async () => {
    const initialized: Record<string, unknown>[] = [];
    for (const options of [
      { name: "my-app", user: "ada" },
      { onElicitation: () => undefined },
      { onElicitation: () => undefined, onQuestion: () => undefined },
    ]) {
      const client = await server.connect(options);
      client.tap((_, envelope) => {
        if ("method" in envelope && envelope.method === "initialize")
          initialized.push(envelope.params as Record<string, unknown>);
      });
      await client.request("x/echo");
      await client.close();
    }

    const questions = { _meta: { "sandboxagent.dev": { questions: true } } };
    const forms = { elicitation: { form: {}, url: {} } };
    assert.deepEqual(
      initialized.map((params) => params["clientCapabilities"]),
      [questions, forms, { ...forms, ...questions }],
    );
    assert.equal((initialized[0]?.["clientInfo"] as { name: string }).name, "my-app");
    assert.deepEqual(initialized[0]?.["_meta"], { "sandboxagent.dev": { agent: "scripted", user: "ada" } });
  });

  test("a wrong token is a ServerProblem", BOUNDED, async () => {
    await assert.rejects(
      SandboxAgent.connect(server.url, { token: "wrong" }),
      (error) => error instanceof ServerProblem && error.slug === "unauthorized" && error.status === 401,
    );
  });

  test("no server is a ConnectionLost, of which it is certain that nothing was done", BOUNDED, async () => {
    const other = createServer();
    await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
    const { port } = other.address() as AddressInfo;
    await new Promise((resolve) => other.close(resolve));

    await assert.rejects(
      SandboxAgent.connect(`http://127.0.0.1:${port}`, { token: TOKEN }),
      (error) => error instanceof ConnectionLost && !error.outcomeUnknown,
    );
    await assert.rejects(SandboxAgent.connect("127.0.0.1:1"), ClientError);
  });

  test("something else that answers is a ForeignAnswer", BOUNDED, async () => {
    const other = createServer((_, response) =>
      response.writeHead(502, { "content-type": "text/html" }).end("<h1>Bad gateway</h1>"),
    );
    await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
    const { port } = other.address() as AddressInfo;

    await assert.rejects(
      SandboxAgent.connect(`http://127.0.0.1:${port}`, { logger: quiet }),
      (error) => error instanceof ForeignAnswer && error.status === 502 && error.message.includes("Bad gateway"),
    );
    other.close();
  });

  test("whoever waits when the client is closed is told", BOUNDED, async () => {
    const client = await server.connect();
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();
    const turn = session.prompt(program(["wait_cancel"]));
    const hanging = assert.rejects(client.request("x/hang"), ConnectionLost);
    await updates.next();
    const waiting = updates.next();

    await client.close();

    await assert.rejects(async () => await turn, ConnectionLost);
    await hanging;
    assert.equal((await within(waiting)).done, true);
    await assert.rejects(client.request("x/echo"), /closed/);
    await client.close();
    await using other = await server.connect();
    await (await other.sessions.attach(session.id)).cancel();
  });

  test("a session goes on when its client is closed", BOUNDED, async () => {
    const client = await server.connect();
    const session = await client.sessions.create({ cwd: server.work });
    session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "finished"]));
    await eventually(async () => (await session.info()).running);
    await client.close();

    await using other = await server.connect();
    const taken = await other.sessions.attach(session.id);
    const updates = taken.updates();
    await taken.cancel();

    for await (const item of updates) if (item.sessionUpdate === "turn_ended") break;
    assert.match(JSON.stringify(await all(taken.history())), /begun.*finished/);
  });
});
