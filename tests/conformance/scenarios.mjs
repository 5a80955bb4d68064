// The official TypeScript SDK as a client of ours. Usage: node scenarios.mjs <SDK directory> <settings as JSON>
// Plays each scenario over each transport, and writes a line of JSON for each: {"scenario", "failure"}.
import assert from "node:assert/strict";

const [directory, json] = process.argv.slice(2);
const { url, token, cwd, transports } = JSON.parse(json);
let transport = transports[0];
const { client, PROTOCOL_VERSION } = await import(`${directory}/dist/v1/unstable/acp.js`);
const { createHttpStream } = await import(`${directory}/dist/transports/http-stream.js`);
const { createWebSocketStream } = await import(`${directory}/dist/transports/ws-stream.js`);

class WithHeaders extends WebSocket {
  constructor(address, protocols, options) {
    super(address, { protocols: protocols ?? [], headers: options?.headers ?? {} });
  }
}

const headers = { Authorization: `Bearer ${token}` };
const noises = [];
console.error = (...words) => noises.push(words.join(" "));

function stream() {
  if (transport === "http") return createHttpStream(`${url}/acp`, { headers });
  const path = transport === "websocket" ? "/acp" : "/v1/rpc";
  return createWebSocketStream(url.replace("http", "ws") + path, { headers, WebSocket: WithHeaders });
}

const PERMISSION = "session/request_permission";
const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const ASK = ["ask", PERMISSION, { toolCall: { toolCallId: "call-1", title: "Remove" }, options: OPTIONS }];
const allow = () => ({ outcome: { outcome: "selected", optionId: "yes" } });

/** A client with its own connection; `answers` handles what agents ask, by method. */
async function open(answers = {}, capabilities = {}) {
  const own = { updates: [], asked: [], stream: stream() };
  const app = client({ name: "conformance" });
  app.onNotification("session/update", ({ params }) => void own.updates.push(params));
  app.onNotification("*", () => {});
  for (const [method, answer] of Object.entries(answers)) {
    app.onRequest(method, (context) => {
      own.asked.push(context.params);
      own.arrived?.();
      return answer(context);
    });
  }
  own.connection = app.connect(own.stream);
  own.agent = own.connection.agent;
  own.greeting = await own.agent.request("initialize", {
    protocolVersion: PROTOCOL_VERSION,
    clientCapabilities: capabilities,
  });
  own.texts = (session) =>
    own.updates
      .filter((one) => one.sessionId === session && one.update.sessionUpdate === "agent_message_chunk")
      .map((one) => one.update.content.text);
  own.newSession = async () => (await own.agent.request("session/new", { cwd, mcpServers: [] })).sessionId;
  own.prompt = (session, program, options) =>
    own.agent.request("session/prompt", prompting(session, program), options);
  own.isAsked = () => (own.asked.length ? Promise.resolve() : new Promise((resolve) => (own.arrived = resolve)));
  own.until = async (condition) => {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  own.close = async () => {
    own.connection.close();
    await own.connection.closed;
  };
  return own;
}

const prompting = (sessionId, program) => ({
  sessionId,
  prompt: [{ type: "text", text: typeof program === "string" ? program : JSON.stringify(program) }],
});

/** Runs with clients, and closes them. */
async function using(count, act, answers, capabilities) {
  const clients = await Promise.all(Array.from({ length: count }, () => open(answers, capabilities)));
  try {
    await act(...clients);
  } finally {
    await Promise.all(clients.map((each) => each.close()));
  }
}

const never = () => new Promise(() => {});

const scenarios = {
  initialize: () =>
    using(1, async (one) => {
      assert.equal(one.greeting.protocolVersion, PROTOCOL_VERSION);
      assert.equal(one.greeting.agentCapabilities.loadSession, true);
    }),
  prompt: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      assert.equal((await one.prompt(session, "hello")).stopReason, "end_turn");
      assert.deepEqual(one.texts(session), ["hello"]);
    }),
  "500 updates in order": () =>
    using(1, async (one) => {
      const session = await one.newSession();
      await one.prompt(session, [["flood", 500, 20]]);
      assert.deepEqual(one.texts(session).map((text) => parseInt(text)), [...Array(500).keys()]);
    }),
  permission: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      await one.prompt(session, [ASK, ["echo_answer"]]);
      assert.match(one.texts(session)[0], /"optionId": ?"yes"/);
    }, { [PERMISSION]: allow }),
  "permission and cancel": () =>
    using(1, async (one) => {
      const session = await one.newSession();
      const turn = one.prompt(session, [ASK, ["wait_answer"]]);
      await one.isAsked();
      await one.agent.notify("session/cancel", { sessionId: session });
      assert.equal((await turn).stopReason, "cancelled");
      await one.prompt(session, "still there");
      assert.equal(one.texts(session).at(-1), "still there");
    }, { [PERMISSION]: async ({ signal }) => {
      // As ACP demands: what waits is answered as cancelled.
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      return { outcome: { outcome: "cancelled" } };
    } }),
  elicitation: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      const form = { mode: "form", message: "Who?", requestedSchema: { type: "object", properties: {} } };
      await one.prompt(session, [["ask", "elicitation/create", form], ["echo_answer"]]);
      assert.match(one.texts(session)[0], /"action": ?"accept"/);
    }, { "elicitation/create": () => ({ action: "accept", content: {} }) }, { elicitation: { form: {} } }),
  fs: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      await one.prompt(session, [["ask", "fs/read_text_file", { path: `${cwd}/a` }], ["echo_answer"]]);
      assert.match(one.texts(session)[0], /of the client/);
    }, { "fs/read_text_file": () => ({ content: "of the client" }) }, { fs: { readTextFile: true } }),
  terminal: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      await one.prompt(session, [["ask", "terminal/create", { command: "echo hello" }], ["echo_answer"]]);
      assert.match(one.texts(session)[0], /terminalId/);
    }),
  cancel: () =>
    using(1, async (one) => {
      const session = await one.newSession();
      const turn = one.prompt(session, [["say", "begun"], ["wait_cancel"]]);
      await one.until(() => one.texts(session).length);
      await one.agent.notify("session/cancel", { sessionId: session });
      assert.equal((await turn).stopReason, "cancelled");
    }),
  "$/cancel_request": () =>
    using(1, async (one) => {
      const session = await one.newSession();
      const abort = new AbortController();
      const first = one.prompt(session, [["say", "begun"], ["wait_cancel"]]);
      await one.until(() => one.texts(session).length);
      const second = one.prompt(session, "not yet", { cancellationSignal: abort.signal });
      abort.abort();
      assert.equal((await second).stopReason, "cancelled");
      await one.agent.notify("session/cancel", { sessionId: session });
      assert.equal((await first).stopReason, "cancelled");
      assert.deepEqual(one.texts(session), ["begun"]);
    }),
  "two sessions": () =>
    using(1, async (one) => {
      const sessions = [await one.newSession(), await one.newSession()];
      await Promise.all(sessions.map((session) => one.prompt(session, [["flood", 100, 20], ["say", session]])));
      for (const session of sessions) assert.equal(one.texts(session).at(-1), session);
    }),
  "equal ids on several connections": () =>
    using(3, async (...all) => {
      await Promise.all(all.map(async (each, index) => {
        const session = await each.newSession();
        await each.prompt(session, [ASK, ["wait_answer"], ["say", String(index)]]);
        assert.deepEqual(each.texts(session), [String(index)]);
      }));
    }, { [PERMISSION]: allow }),
  "load and list": () =>
    using(2, async (one, two) => {
      const session = await one.newSession();
      await one.prompt(session, [["flood", 50, 20]]);
      await two.agent.request("session/load", { sessionId: session, cwd, mcpServers: [] });
      await two.until(() => two.texts(session).length === 50);
      await two.prompt(session, "after the load");
      assert.equal(two.texts(session).at(-1), "after the load");
      const { sessions } = await one.agent.request("session/list", {});
      assert.ok(sessions.some((each) => each.sessionId === session));
    }),
  "resume and close": () =>
    using(2, async (one, two) => {
      const session = await one.newSession();
      await two.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      await two.prompt(session, "resumed");
      assert.deepEqual(two.texts(session), ["resumed"]);
      await one.agent.request("session/close", { sessionId: session });
      await two.prompt(session, "and back");
      assert.equal(two.texts(session).at(-1), "and back");
    }),
  "1 MiB both ways": () =>
    using(1, async (one) => {
      const session = await one.newSession();
      const text = "é".repeat(1 << 19);
      await one.prompt(session, text);
      assert.equal(one.texts(session).join(""), text);
    }),
  "errors and unknown methods": () =>
    using(1, async (one) => {
      const unknown = one.agent.request("x/nonesuch", {});
      await assert.rejects(unknown, (error) => error.code === -32601);
      await assert.rejects(one.agent.request("x/error", { code: -32050, message: "no" }), (e) => e.code === -32050);
      await assert.rejects(one.prompt("nonesuch", "x"), (error) => error.code === -32002);
      await assert.rejects(one.agent.request("session/new", { cwd: "relative", mcpServers: [] }), (e) => e.code === -32602);
      await one.agent.notify("x/whatever", {});
      const session = await one.newSession();
      assert.equal((await one.prompt(session, "well")).stopReason, "end_turn");
    }),
  "broadcast and isolation": () =>
    using(3, async (one, two, three) => {
      const session = await one.newSession();
      await two.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      await one.prompt(session, [["flood", 100, 20]]);
      await two.until(() => two.texts(session).length === 100);
      assert.deepEqual(two.texts(session), one.texts(session));
      assert.deepEqual(three.updates, []);
    }),
  "the first answer wins": () =>
    using(2, async (one, two) => {
      const session = await one.newSession();
      await two.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      await one.prompt(session, [ASK, ["wait_answer"], ["say", "went on"]]);
      assert.deepEqual(one.texts(session), ["went on"]);
      await Promise.all([one.isAsked(), two.isAsked()]);
      await Promise.all([one, two].map((each) => each.prompt(session, "fine")));
    }, { [PERMISSION]: allow }),
  "the prompter leaves with a permission pending": async () => {
    const one = await open({ [PERMISSION]: never });
    const session = await one.newSession();
    one.prompt(session, [ASK, ["wait_answer"], ["say", "went on"]]).catch(() => {});
    await one.isAsked();
    await one.close();
    await using(1, async (two) => {
      await two.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      await two.until(() => two.texts(session).includes("went on"));
    }, { [PERMISSION]: allow });
  },
  "cancel by another": () =>
    using(2, async (one, two) => {
      const session = await one.newSession();
      await two.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      const turn = one.prompt(session, [["say", "begun"], ["wait_cancel"]]);
      await two.until(() => two.texts(session).length);
      await two.agent.notify("session/cancel", { sessionId: session });
      assert.equal((await turn).stopReason, "cancelled");
    }),
  "20 clients": () =>
    using(20, async (first, ...others) => {
      const session = await first.newSession();
      for (const each of others) await each.agent.request("session/resume", { sessionId: session, cwd, mcpServers: [] });
      await first.prompt(session, [["flood", 20, 20]]);
      await Promise.all(others.map((each) => each.until(() => each.texts(session).length === 20)));
    }),
};

const plays = transports.flatMap((each) => Object.entries(scenarios).map(([name, play]) => [each, name, play]));
for (const [each, name, play] of plays) {
  transport = each;
  const scenario = `${each}: ${name}`;
  noises.length = 0;
  const limit = new Promise((_, reject) => setTimeout(() => reject(new Error("takes too long")), 60_000).unref());
  const failure = await Promise.race([play(), limit]).then(() => noises[0] ?? null, (error) => String(error.stack ?? error));
  process.stdout.write(`${JSON.stringify({ scenario, failure })}\n`);
}
process.exit(0);
