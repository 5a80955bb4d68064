/** A network that breaks, and a server that goes and comes back: nothing is lost, repeated or reordered. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import {
  type ConnectOptions,
  ConnectionLost,
  type Iteration,
  type PermissionRequest,
  RequestError,
  ServerProblem,
  type Session,
  type SessionItem,
  textOf,
} from "sandboxagent";

import { network } from "./support/network.js";
import { randomness } from "./support/proxy.js";
import { PERMISSION, TestServer, program } from "./support/server.js";
import { Arrival, all, eventually, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
/** Of a server that has stopped, or of a node behind a gateway. */
const OUTCOME_UNKNOWN = /outcome-unknown|node-lost/;

type Ending = "SIGTERM" | "SIGKILL";

/** How the server is talked to, what tells that it has taken something, and how it is ended: each costs seconds. */
const WAYS: readonly [string, ConnectOptions, RegExp, Ending[]][] = [
  ["with answers by POST", { respondAsync: false }, /202 Accepted/, ["SIGKILL"]],
  ["with answers on the stream", { respondAsync: true }, /202 Accepted/, ["SIGTERM"]],
  ["over a WebSocket", { transport: "websocket" }, /"id":"[0-9a-f]{32}","result"/, ["SIGTERM", "SIGKILL"]],
];

for (const [name, way, taken, signals] of WAYS) {
  const byPost = way.respondAsync === false;
  const bySocket = way.transport === "websocket";
  describe(name, () => {
    const { server, proxy, made } = network([], way);

    /** How often the agent got a prompt with these words. */
    async function prompted(words: string): Promise<number> {
      await using direct = await server.connect();
      const { lines } = await direct.request<{ lines: string[] }>("x/received");
      return lines.filter((line) => line.includes('"session/prompt"') && line.includes(words)).length;
    }

    test("a stream that is cut again and again loses nothing and repeats nothing", BOUNDED, async () => {
      await using has = await made();
      const turn = has.session.prompt(program(["flood", 2000, 50], ["say", "cut again"]));
      let texts = 0;
      const seen: number[] = [];

      for await (const item of turn) {
        if (!textOf(item) || textOf(item) === "cut again") continue;
        seen.push(Number.parseInt(textOf(item)));
        texts += 1;
        if (texts % 200 === 0) proxy.cut();
      }

      assert.deepEqual(seen, [...Array(2000).keys()]);
      assert.equal(await prompted("cut again"), 1);
    });

    test("a turn outlives its sockets", BOUNDED, async () => {
      const asking = new Arrival<PermissionRequest>();
      await using has = await made({ onPermission: (request) => asking.arrive(request) });
      const turn = has.session.prompt(
        program(
          ["say", "one"],
          ["ask", "session/request_permission", PERMISSION],
          ["echo_answer"],
          ["say", "outlived"],
        ),
      );
      const request = await asking;

      proxy.cut();
      await has.client.replyPermission(request.id, "yes");

      const texts = (await within(all(turn))).map(textOf).filter(Boolean);
      assert.equal(texts[0], "one");
      assert.match(texts[1]!, /"yes"/);
      assert.equal(texts[2], "outlived");
      assert.equal((await turn).stopReason, "end_turn");
      assert.equal(await prompted("outlived"), 1);
    });

    test("a client knows whether its connection is there", BOUNDED, async () => {
      const client = await server.connect({ url: proxy.url, ...way });
      const seen: string[] = [];
      const stop = client.onConnectionChange(({ state }) => seen.push(state));
      assert.equal(client.connection.state, "closed");

      await client.sessions.create({ cwd: server.work });
      await eventually(() => client.connection.state === "live");
      proxy.leave();
      await eventually(() => client.connection.state === "reconnecting");
      assert.equal(client.connection.error?.slug, "connection-lost");
      proxy.comeBack();
      await eventually(() => client.connection.state === "live");
      assert.deepEqual(seen, ["live", "reconnecting", "live"]);

      stop();
      await client.close();
      assert.equal(client.connection.state, "closed");
      assert.equal(seen.length, 3);
    });

    test("a network that is away for a while is waited for", BOUNDED, async () => {
      await using has = await made();
      const turn = has.session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "ended"]));
      const items = turn[Symbol.asyncIterator]();
      await until(items, (item) => textOf(item) === "begun");

      proxy.leave();
      const cancelling = turn.cancel();
      const echo = has.client.request<{ method: string }>("x/echo");
      await using direct = await server.connect();
      await direct.request("x/echo");
      proxy.comeBack();

      await within(cancelling);
      assert.equal((await within(echo)).method, "x/echo");
      await until(items, (item) => textOf(item) === "ended");
      assert.equal((await within(turn)).stopReason, "cancelled");
    });

    test("a request that is cut before it has arrived is sent again", BOUNDED, async () => {
      await using has = await made();
      let cuts = 0;
      // What goes up on a WebSocket is masked: after the handshake it can be nothing but this.
      const isIt = (data: Buffer, passed: number): boolean => (bySocket ? passed > 0 : data.includes("sent again"));
      proxy.judge((data, direction, passed) => direction === "up" && isIt(data, passed) && ++cuts <= 3);

      const text = await within(has.session.prompt("sent again").text());

      proxy.judge();
      assert.equal(text, "sent again");
      assert.ok(cuts >= 4);
      assert.equal(await prompted("sent again"), 1);
    });

    test("a request whose answer is cut runs once", BOUNDED, async () => {
      await using has = await made();
      let cuts = 0;
      proxy.judge(
        (data, direction) => direction === "down" && /"stopReason"|202 Accepted/.test(data.toString()) && ++cuts <= 2,
      );

      const turn = has.session.prompt("runs once");

      assert.equal(await within(turn.text()), "runs once");
      proxy.judge();
      assert.ok(cuts >= 1);
      assert.equal(await prompted("runs once"), 1);
    });

    test("a session whose making was not answered is made once", BOUNDED, async () => {
      const client = await server.connect({ url: proxy.url, ...way });
      await client.request("x/echo");
      const path = await client.files.mkdir(`${server.work}/once`);
      let cuts = 0;
      proxy.judge(
        (data, direction) => direction === "down" && /"sessionId"|202 Accepted/.test(data.toString()) && ++cuts <= 1,
      );

      const session = await within(client.sessions.create({ cwd: path }));

      proxy.judge();
      if (byPost) assert.equal(cuts, 2);
      assert.deepEqual(
        (await all(client.sessions.list({ cwd: path }))).map((info) => info.sessionId),
        [session.id],
      );
      assert.equal(await session.prompt("works").text(), "works");
      await client.close();
    });

    test("an answer whose acknowledgement is cut counts", BOUNDED, async () => {
      const asking = new Arrival<PermissionRequest>();
      await using has = await made({ onPermission: (request) => asking.arrive(request) });
      const turn = has.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const { id } = await asking;
      let cuts = 0;
      proxy.judge((data, direction) => direction === "down" && taken.test(data.toString()) && ++cuts <= 1);

      await within(has.client.replyPermission(id, "yes"));

      proxy.judge();
      assert.match(await turn.text(), /"yes"/);
      assert.ok(cuts >= 1);
    });

    test("cuts at random places change nothing", BOUNDED, async () => {
      const seed = Number(process.env["SDK_SEED"] ?? Date.now() % 1_000_000);
      const random = randomness(seed);
      await using has = await made({ onPermission: (request) => request.allow() });
      const updates = has.session.updates();
      let left = 60;
      proxy.judge(() => left > 0 && random() < 0.15 && left-- > 0);

      const heard: string[] = [];
      for (let round = 0; round < 10; round += 1) {
        const steps = [
          ["flood", 100, 30],
          ["ask", "session/request_permission", PERMISSION],
          ["wait_answer"],
          ["say", `end of ${round}`],
        ];
        heard.push(
          await within(has.session.prompt(program(...steps)).text(), `round ${round} with SDK_SEED=${seed}`),
        );
      }

      proxy.judge();
      const flood = [...Array(100).keys()].map((index) => `${index} `.padEnd(30, "x"));
      for (const [round, text] of heard.entries()) {
        assert.equal(text.replaceAll(/[^\dn dof]/g, "").length > 0, true);
        assert.equal(text, normalized(text, flood, round), `SDK_SEED=${seed}`);
      }
      const ends: string[] = [];
      while (ends.length < 10) ends.push(textOf(await until(updates, (item) => /^end of/.test(textOf(item)))));
      assert.deepEqual(
        ends,
        [...Array(10).keys()].map((round) => `end of ${round}`),
      );
      assert.equal(await prompted("end of 7"), 1);
    });

    test("a session goes on after a restart of the server", BOUNDED, async () => {
      await using has = await made();
      const updates = has.session.updates();
      assert.equal(await has.session.prompt("before").text(), "before");

      await server.restart();

      assert.equal(await within(has.session.prompt("after").text()), "after");
      assert.deepEqual(await kindsToEnd(updates), [
        "turn_started",
        "agent_message_chunk",
        "turn_ended",
        "session_ended",
      ]);
      await until(updates, (item) => textOf(item) === "after");
    });

    for (const signal of signals) {
      test(
        `a turn that a ${signal} of the server ends is told as such, after all that was kept of it`,
        BOUNDED,
        async () => {
          await using has = await made();
          const turn = has.session.prompt(program(["flood", 100, 20], ["wait_cancel"]));
          const updates = has.session.updates();
          const items = turn[Symbol.asyncIterator]();
          await until(items, (item) => textOf(item).startsWith("99"));
          await settled(server, has.session);

          await server.restart(signal);

          const rest = await within(
            (async () => {
              try {
                for (;;) if ((await items.next()).done) return "no failure";
              } catch (error) {
                return error;
              }
            })(),
            "the failure",
          );
          assert.ok(rest instanceof RequestError, String(rest));
          assert.match(JSON.stringify(rest.data), OUTCOME_UNKNOWN);
          assert.deepEqual((await kindsToEnd(updates)).slice(-2), ["turn_ended", "session_ended"]);
          assert.equal(await within(has.session.prompt("still here").text()), "still here");
          const texts = (await logOf(has.session))
            .map(({ envelope }) => JSON.stringify(envelope))
            .filter((text) => text.includes("agent_message_chunk"));
          assert.equal(texts.length, 101);
        },
      );
    }

    test("an id from before a restart allows nothing that is asked after it", BOUNDED, async () => {
      const asked: PermissionRequest[] = [];
      await using has = await made({ onPermission: (request) => void asked.push(request) });
      const ask = () =>
        has.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"])).text();
      const lost = ask().catch(() => "lost");
      await eventually(() => asked.length === 1);

      await server.restart();
      await within(lost);
      const answered = ask();
      await eventually(() => asked.length === 2);
      const [before, now] = asked as [PermissionRequest, PermissionRequest];

      await assert.rejects(
        within(has.client.replyPermission(before.id, "yes")),
        (error) => error instanceof ServerProblem && [404, 409].includes(error.status),
      );
      await has.client.rejectPermission(now.id);
      assert.match(await within(answered), /"optionId": ?"no"/);
    });

    test("a restart in the middle of a loop is no gap", BOUNDED, async () => {
      await using has = await made();
      const other = await server.connect();
      const seen = (await other.sessions.attach(has.session.id)).updates();
      await has.session.prompt(program(["flood", 50, 10]));

      await server.restart();
      await within(has.session.prompt(program(["flood", 50, 10])).text());

      await has.session.terminate();

      // What was before the restart and what came after it, each once and in order.
      const items = await within(all(seen));
      assert.deepEqual(texts(items), [...Array(50).keys(), ...Array(50).keys()]);
      await other.close();
    });

    test("a request that names no session is lost with the server that had it", BOUNDED, async () => {
      await using has = await made();
      const hanging = assert.rejects(
        has.client.request("x/hang"),
        (error) =>
          error instanceof RequestError
            ? OUTCOME_UNKNOWN.test(JSON.stringify(error.data))
            : error instanceof ConnectionLost && error.outcomeUnknown,
      );
      await eventually(async () => {
        await using direct = await server.connect();
        const { lines } = await direct.request<{ lines: string[] }>("x/received");
        return lines.some((line) => line.includes("x/hang"));
      });

      await server.restart();

      await within(hanging);
      assert.equal((await has.client.request<{ method: string }>("x/echo")).method, "x/echo");
    });

    test("a server that stays away is a ConnectionLost, for each request and for nothing else", BOUNDED, async () => {
      await using has = await made({ reconnectTimeout: 300 });
      const turn = has.session.prompt(program(["wait_cancel"]));
      const updates = has.session.updates();
      await until(updates, (item) => item.sessionUpdate === "turn_started");

      proxy.leave();

      await assert.rejects(
        within(
          has.session.info().then(
            () => has.client.request("x/echo"),
            () => has.client.request("x/echo"),
          ),
        ),
        ConnectionLost,
      );
      await assert.rejects(async () => await within(turn), ConnectionLost);
      proxy.comeBack();
      await has.session.cancel();
      await until(updates, (item) => item.sessionUpdate === "turn_ended");
      assert.equal(await within(has.session.prompt("back").text()), "back");
    });
  });
}

describe("connections that the server forgets", () => {
  const { server, proxy } = network(["--connection-ttl", "300ms", "--heartbeat", "100ms"]);

  /** Cuts a client off for so long that the server forgets its connection. */
  async function forgotten(): Promise<void> {
    const before = server.stderr.length;
    proxy.leave();
    await eventually(() => /connection closed/.test(server.stderr.slice(before)), "the end of the connection");
  }

  test("what happened meanwhile is read from the log: all of it, once, in order", BOUNDED, async () => {
    await using away = await server.connect({ url: proxy.url });
    await using here = await server.connect();
    const session = await here.sessions.create({ cwd: server.work });
    const updates = (await away.sessions.attach(session.id)).updates();
    const hold = here.sessions.create({ cwd: server.work });
    await session.prompt(program(["flood", 20, 10]));

    await forgotten();
    await session.prompt(program(["flood", 700, 10]));
    await session.setMetadata({ meanwhile: true });
    proxy.comeBack();
    await session.prompt(program(["say", "the last"]));

    const items: SessionItem[] = [];
    for await (const item of updates) {
      items.push(item);
      if (textOf(item) === "the last") break;
    }
    assert.deepEqual(texts(items.slice(0, -1)), [...Array(20).keys(), ...Array(700).keys()]);
    const others = items.map((item) => item.sessionUpdate).filter((kind) => kind !== "agent_message_chunk");
    const turn = ["turn_started", "user_message_chunk", "turn_ended"];
    assert.deepEqual(others, [...turn, ...turn, "metadata_update", "turn_started", "user_message_chunk"]);
    await hold;
  });

  test("what is still open is asked anew, and the old handler is told", BOUNDED, async () => {
    const requests: PermissionRequest[] = [];
    await using away = await server.connect({ url: proxy.url, onPermission: (request) => void requests.push(request) });
    await using here = await server.connect();
    const session = await here.sessions.create({ cwd: server.work });
    await away.sessions.attach(session.id);
    const turn = session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
    await eventually(() => requests.length === 1, "the request");

    await forgotten();
    proxy.comeBack();

    await eventually(() => requests.length === 2, "the request once more");
    assert.deepEqual(
      requests.map(({ signal }) => signal.aborted),
      [true, false],
    );
    await away.replyPermission(requests[1]!.id, "yes");
    assert.match(await turn.text(), /"yes"/);
  });

  test("new sessions can be made", BOUNDED, async () => {
    await using away = await server.connect({ url: proxy.url });
    await away.sessions.create({ cwd: server.work });

    await forgotten();
    proxy.comeBack();

    assert.equal(await (await within(away.sessions.create({ cwd: server.work }))).prompt("new").text(), "new");
  });
});

/** What comes up to the end of the session, by its type. */
async function kindsToEnd(updates: Iteration<SessionItem>): Promise<string[]> {
  const kinds: string[] = [];
  await until(updates, (item) => kinds.push(item.sessionUpdate) > 0 && item.sessionUpdate === "session_ended");
  return kinds;
}

test("a server that has lost its sessions says so", BOUNDED, async () => {
  const server = await TestServer.start(["--no-persist"]);
  const client = await server.connect();
  const session = await client.sessions.create({ cwd: server.work });
  await session.prompt("hello");
  const updates = session.updates();

  await server.restart();

  const items = await within(all(updates));
  assert.equal(items.at(-1)?.sessionUpdate, "session_ended");
  await assert.rejects(
    async () => await session.prompt("gone"),
    (error) => error instanceof RequestError && error.code === -32002,
  );
  assert.equal(await (await client.sessions.create({ cwd: server.work })).prompt("new").text(), "new");
  await client.close();
  await server.close();
});

function texts(items: SessionItem[]): number[] {
  return items
    .filter((item) => item.sessionUpdate === "agent_message_chunk")
    .map((item) => Number.parseInt(textOf(item)));
}

/** What a round must have said. */
function normalized(text: string, flood: string[], round: number): string {
  const said = text.slice(0, text.length - `end of ${round}`.length);
  const numbers = [...said.matchAll(/(\d+)[^\d]*/g)].map(([, number]) => Number(number));
  assert.deepEqual(
    numbers,
    flood.map((_, index) => index),
  );
  return `${said}end of ${round}`;
}

/** Waits until the log has on disk what was said: a kill may cost the updates of the last 50 ms. */
async function settled(server: TestServer, session: Session): Promise<void> {
  await using direct = await server.connect();
  await (await direct.sessions.attach(session.id)).setMetadata({ settled: Math.random() });
}
