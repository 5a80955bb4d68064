/** The way of an envelope, with a server that can be told to do what a good one seldom does. */

import assert from "node:assert/strict";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, test } from "node:test";

import { type ConnectOptions, ConnectionLost, SandboxAgent, ServerProblem, textOf } from "sandboxagent";

import { Remembering } from "./support/logger.js";
import { type Posted, Pretender } from "./support/pretending.js";
import { eventually, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

let server: Pretender;
let logger: Remembering;
let clients: SandboxAgent[];

beforeEach(async () => {
  server = await Pretender.open();
  logger = new Remembering();
  clients = [];
});

afterEach(async () => {
  for (const client of clients) await client.close();
  await server.close();
});

async function connected(options: ConnectOptions = {}): Promise<SandboxAgent> {
  const client = await SandboxAgent.connect(server.url, { agent: "pretended", logger, ...options });
  clients.push(client);
  return client;
}

const chunk = (text: string): object => ({
  method: "session/update",
  params: { sessionId: "s", update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } } },
});
const turn = (state: string, promptId: unknown): object => ({
  method: "_sandboxagent/session/turn",
  params: { sessionId: "s", turnId: "turn-1", promptId, state },
});

test("an answer that overtakes its updates is held back until they have come", BOUNDED, async () => {
  const client = await connected();
  let prompt: Posted | undefined;
  server.onPost = (posted) => {
    if (posted.envelope.method === "session/new") posted.answer({ sessionId: "s" });
    else prompt = posted;
  };
  const session = await client.sessions.create({ cwd: "/" });
  const running = session.prompt("hello");
  await eventually(() => prompt !== undefined && server.streaming);
  const { promptId } = (prompt!.envelope.params!["_meta"] as Record<string, { promptId: string }>)["sandboxagent.dev"]!;

  prompt!.answer({ stopReason: "end_turn" }, 4);
  server.say(1, turn("started", promptId));
  server.say(2, chunk("one "));
  let settled = false;
  running.then(() => (settled = true));
  // By then the answer is here, too.
  await client.health();
  await client.health();
  assert.equal(settled, false);
  server.say(3, chunk("two"));
  server.say(4, turn("ended", promptId));

  assert.equal((await within(running)).stopReason, "end_turn");
  assert.equal(await running.text(), "one two");
});

test("an answer is held back for no longer than a request waits", BOUNDED, async () => {
  const client = await connected({ reconnectTimeout: 200 });
  server.onPost = (posted) => posted.answer({ late: true }, 99);

  assert.deepEqual(await within(client.request("x/any")), { late: true });
  assert.match(logger.warnings.join(), /the stream stays away/);
});

test("an answer that comes twice, on the stream and by POST, counts once", BOUNDED, async () => {
  const client = await connected();
  let first: Posted | undefined;
  server.onPost = (posted) => (posted.envelope.method === "x/twice" ? (first = posted) : posted.answer({}));
  const answer = client.request<{ from: string }>("x/twice");
  await eventually(() => first !== undefined && server.streaming);

  server.say(1, { id: first!.envelope.id, result: { from: "stream" } });
  assert.equal((await within(answer)).from, "stream");
  first!.answer({ from: "post" }, 1);

  assert.deepEqual(await within(client.request("x/next")), {});
});

test("requests that change something have a key, and repeats have the same", BOUNDED, async () => {
  const client = await connected();
  const keys: [string, unknown][] = [];
  let refusals = 2;
  server.onPost = (posted) => {
    keys.push([posted.envelope.method!, posted.headers["idempotency-key"]]);
    if (posted.envelope.method === "x/change" && refusals-- > 0) posted.refuse(502);
    else posted.answer({});
  };

  await within(client.request("x/change"));
  await client.request("_sandboxagent/session/pending");
  await client.request("x/change");

  const changes = keys.filter(([method]) => method === "x/change").map(([, key]) => key);
  assert.equal(changes.length, 4);
  assert.ok(typeof changes[0] === "string" && changes[0].length >= 16);
  assert.deepEqual([changes[1], changes[2]], [changes[0], changes[0]]);
  assert.notEqual(changes[3], changes[0]);
  assert.deepEqual(
    keys.find(([method]) => method === "_sandboxagent/session/pending"),
    ["_sandboxagent/session/pending", undefined],
  );
});

test("the stream goes on after the last event that came", BOUNDED, async () => {
  const client = await connected();
  const heard: unknown[] = [];
  client.tap((direction, _, position) => {
    if (direction === "received" && position !== undefined) heard.push(position);
  });
  await client.request("x/any");
  await eventually(() => server.streaming);
  server.say(41, { method: "x/one", params: {} });
  server.say(42, { method: "x/two", params: {} });
  await eventually(() => heard.length === 2);

  server.endStream();

  await eventually(() => server.resumed.length >= 2);
  assert.deepEqual(server.resumed.slice(0, 2), [undefined, "42"]);
});

test("a refusal fails its own request and nothing else", BOUNDED, async () => {
  const client = await connected();
  server.onPost = (posted) =>
    posted.envelope.method === "x/bad" ? posted.refuse(507, "log-unavailable") : posted.answer({ fine: true });

  const results = await Promise.allSettled([
    client.request("x/bad"),
    client.request("x/good"),
    client.request("x/bad"),
  ]);

  assert.deepEqual(
    results.map(({ status }) => status),
    ["rejected", "fulfilled", "rejected"],
  );
  const [bad] = results;
  assert.ok(bad?.status === "rejected" && bad.reason instanceof ServerProblem && bad.reason.slug === "log-unavailable");
  assert.deepEqual(await client.request("x/good"), { fine: true });
});

test("a connection that is forgotten is opened anew, and what was asked is asked there", BOUNDED, async () => {
  const client = await connected();
  const on: unknown[] = [];
  server.onPost = (posted) => {
    on.push(posted.headers["x-acp-connection-id"]);
    if (on.length === 1) posted.refuse(404, "unknown-connection");
    else posted.answer({ fine: true });
  };

  assert.deepEqual(await within(client.request("x/any")), { fine: true });
  assert.deepEqual(on, ["connection-1", "connection-2"]);
});

test("an allow for a connection that is gone answers nothing on the next", BOUNDED, async () => {
  const allows: (() => void)[] = [];
  const client = await connected({
    onPermission: (request) => new Promise((resolve) => allows.push(() => resolve(request.allow()))),
  });
  const answers: unknown[] = [];
  server.onPost = (posted) => {
    const on = posted.headers["x-acp-connection-id"];
    if (posted.envelope.method !== undefined) return posted.answer({});
    answers.push([on, posted.envelope.id]);
    if (on === "connection-1") posted.refuse(404, "unknown-connection");
    else posted.accept();
  };
  const options = [{ optionId: "yes", name: "Yes", kind: "allow_once" }];
  const permission = (title: string): object => ({
    id: 0,
    method: "session/request_permission",
    params: { sessionId: "s", toolCall: { toolCallId: "c", title }, options },
  });
  await client.request("x/open");
  await eventually(() => server.streaming);
  server.say(1, permission("harmless"));
  await eventually(() => allows.length === 1);

  allows[0]!();
  await eventually(() => server.resumed.length === 2 && server.streaming);
  server.say(2, permission("dangerous"));
  await eventually(() => allows.length === 2);
  await client.request("x/any");
  assert.deepEqual(answers, [["connection-1", 0]]);

  allows[1]!();
  await eventually(() => answers.length === 2);
  assert.deepEqual(answers[1], ["connection-2", 0]);
});

test("an answer that a lost node cannot take leaves the request open, and is taken later", BOUNDED, async () => {
  const client = await connected({ onPermission: () => undefined });
  let isLost = true;
  server.onPost = (posted) => {
    if (posted.envelope.method !== undefined) posted.answer({});
    else if (isLost) posted.refuse(503, "node-unreachable");
    else posted.accept();
  };
  await client.request("x/open");
  await eventually(() => server.streaming);
  const options = [{ optionId: "yes", name: "Yes", kind: "allow_once" }];
  const params = { sessionId: "s", toolCall: { toolCallId: "c", title: "any" }, options };
  server.say(1, { id: 0, method: "session/request_permission", params });
  await eventually(() => client.requests().length === 1);
  const [request] = client.requests();

  const refused = within(client.replyPermission(request!.id, "yes"));
  await assert.rejects(refused, (error) => error instanceof ServerProblem && error.slug === "node-unreachable");
  assert.deepEqual(client.requests(), [request]);

  isLost = false;
  await within(client.replyPermission(request!.id, "yes"));
  assert.deepEqual(client.requests(), []);
});

test("a server that forgets every connection at once is not asked for ever", BOUNDED, async () => {
  const client = await connected();
  server.onPost = (posted) => posted.refuse(404, "unknown-connection");

  await assert.rejects(
    within(client.request("x/any")),
    (error) => error instanceof ConnectionLost && /forgets every connection/.test(error.message),
  );
  assert.ok(server.opened < 10, String(server.opened));
});

test("a stream that is refused is tried again, and told of once", BOUNDED, async () => {
  const client = await connected();
  let refusals = 4;
  server.onStream = () => refusals-- <= 0;
  server.onPost = (posted) => posted.answer({});

  await within(client.request("x/any"));
  await eventually(() => server.streaming, "the stream");

  assert.ok(logger.warnings.length <= 1, logger.warnings.join());
});

test("an event that is no envelope harms nothing", BOUNDED, async () => {
  const client = await connected();
  await client.request("x/any");
  await eventually(() => server.streaming);

  server.say(1, []);
  server.say(2, { neither: true });

  assert.deepEqual(await within(client.request("x/any")), {});
});

test("closing does not wait for a server that is not there", BOUNDED, async () => {
  const silent = createServer();
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  const client = await connected({
    fetch: (input, init) =>
      fetch(
        input.includes("/v1/rpc")
          ? input.replace(server.url, `http://127.0.0.1:${(silent.address() as AddressInfo).port}`)
          : input,
        init,
      ),
  });
  const hanging = assert.rejects(client.request("x/any"), ConnectionLost);

  await within(client.close(), "the end of the client", 20_000);

  await hanging;
  silent.close();
});

test("with answers on the stream, nothing waits on a socket, and a 504 of a proxy is no end", BOUNDED, async () => {
  const client = await connected({ respondAsync: true });
  const waiting: Posted[] = [];
  server.onPost = (posted) => {
    assert.equal(posted.headers["prefer"], "respond-async");
    waiting.push(posted);
    if (waiting.length === 1) posted.refuse(504);
    else posted.accept();
  };
  const answer = client.request<{ done: boolean }>("x/long");
  await eventually(() => waiting.length === 2 && server.streaming);

  server.say(1, { id: waiting[0]!.envelope.id, result: { done: true } });

  assert.deepEqual(await within(answer), { done: true });
});

test("what was accepted on a connection that is gone by then is asked again", BOUNDED, async () => {
  const client = await connected({ respondAsync: true });
  const posted: Posted[] = [];
  server.onPost = (each) => {
    if (each.envelope.method === "x/new") each.refuse(404, "unknown-connection");
    else posted.push(each);
  };
  const answer = client.request<{ done: boolean }>("session/set_mode", { sessionId: "s", modeId: "m" });
  await eventually(() => posted.length === 1 && server.streaming);
  // Something else finds out that the connection is gone, before the first is accepted.
  await assert.rejects(client.request("x/new"), ConnectionLost);
  posted[0]!.accept();

  await eventually(() => posted.length === 2, "the repeat");
  assert.equal(posted[1]!.headers["idempotency-key"], posted[0]!.headers["idempotency-key"]);
  assert.notEqual(posted[1]!.headers["x-acp-connection-id"], posted[0]!.headers["x-acp-connection-id"]);
  posted[1]!.accept();
  await eventually(() => server.streaming);
  server.say(1, { id: posted[1]!.envelope.id, result: { done: true } });

  assert.deepEqual(await within(answer), { done: true });
});

test("texts of an agent are told apart from its thoughts", () => {
  assert.equal(textOf({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: "said" } }), "said");
  assert.equal(textOf({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text: "thought" } }), "");
  assert.equal(
    textOf({ sessionUpdate: "agent_message_chunk", content: { type: "image", data: "", mimeType: "image/png" } }),
    "",
  );
});
