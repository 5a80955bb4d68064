/** One WebSocket for everything, and HTTP where none gets through; sockets that go silent. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { InvalidCall, type Logger, SandboxAgent, ServerProblem, textOf } from "sandboxagent";

import { network } from "./support/network.js";
import { PERMISSION, TOKEN, program } from "./support/server.js";
import { all, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const hasSocket = "WebSocket" in globalThis;

describe("a client on a WebSocket", { skip: hasSocket ? false : "this Node has no WebSocket" }, () => {
  const { proxy, made } = network(["--max-body", "200KiB", "--heartbeat", "100ms"], { transport: "websocket" });
  /** The request lines and headers that went up. */
  let heads: string[] = [];

  function listen(refuse: (head: string) => boolean = () => false): void {
    heads = [];
    proxy.judge((data, direction) => {
      const head = data.toString("latin1");
      if (direction === "up" && /^(GET|POST|DELETE) /.test(head)) heads.push(head);
      return direction === "up" && refuse(head);
    });
  }

  function count(pattern: RegExp): number {
    return heads.filter((head) => pattern.test(head)).length;
  }

  test("everything goes over one socket, the token as a subprotocol and not in the address", BOUNDED, async () => {
    listen();
    {
      await using has = await made({ onPermission: (request) => request.allow() });
      const steps = [["ask", "session/request_permission", PERMISSION], ["echo_answer"]];
      assert.match(await within(has.session.prompt(program(...steps)).text()), /"yes"/);
      const turn = has.session.prompt(program(["say", "begun"], ["wait_cancel"]));
      await until(turn[Symbol.asyncIterator](), (item) => textOf(item) === "begun");
      await turn.cancel();
      assert.equal((await within(turn)).stopReason, "cancelled");
    }

    assert.equal(count(/^POST \/v1\/rpc /), 1, "initialize, and nothing else");
    assert.equal(count(/^GET \/v1\/rpc/), 1);
    assert.equal(count(/^DELETE /), 0);
    const upgrade = heads.find((head) => /^GET \/v1\/rpc\?/.test(head)) ?? "";
    assert.match(upgrade, /sandboxagent\.bearer\.dGVzdC10b2tlbg/);
    assert.ok(!upgrade.includes(TOKEN));
  });

  test("prompts that are sent at once run in the order of sending, also when the socket is cut", BOUNDED, async () => {
    await using has = await made();
    const turns = [...Array(6).keys()].map((number) => has.session.prompt(program(["say", String(number)])));
    proxy.cut();
    turns.push(has.session.prompt(program(["say", "6"])));
    const order: string[] = [];
    await within(Promise.all(turns.map((turn) => turn.text().then((text) => order.push(text)))));

    assert.deepEqual(order, ["0", "1", "2", "3", "4", "5", "6"]);
  });

  test("a cancel that is sent again after a cut is taken once", BOUNDED, async () => {
    await using has = await made();
    const first = has.session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "first"]));
    await until(first[Symbol.asyncIterator](), (item) => textOf(item) === "begun");
    let cuts = 0;
    proxy.judge((data, direction) => direction === "down" && isReceipt(data) && ++cuts <= 1);

    await within(first.cancel());
    const second = await within(has.session.prompt(program(["flood", 300, 100], ["say", "whole"])));

    assert.equal((await first).stopReason, "cancelled");
    assert.equal(second.stopReason, "end_turn");
    assert.ok(cuts >= 1);
  });

  test("what is too large for the server is refused alone", BOUNDED, async () => {
    await using has = await made();
    const turn = has.session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "on"]));
    await until(turn[Symbol.asyncIterator](), (item) => textOf(item) === "begun");

    const large = has.session.prompt("x".repeat(400 << 10));

    await assert.rejects(
      async () => await within(large),
      (error) => error instanceof ServerProblem && error.slug === "body-too-large",
    );
    await turn.cancel();
    assert.equal((await within(turn)).stopReason, "cancelled");
  });

  test("where a proxy refuses the upgrade, HTTP does the work, and a report says so once", BOUNDED, async () => {
    const reports: string[] = [];
    const logger: Logger = { warn: (text) => void reports.push(String(text)), error: () => undefined };
    listen((head) => /upgrade: websocket/i.test(head));
    await using has = await made({ logger });

    const turns = [...Array(4).keys()].map((number) => has.session.prompt(program(["say", String(number)])));
    const order: string[] = [];
    await within(Promise.all(turns.map((turn) => turn.text().then((text) => order.push(text)))));
    proxy.cut();
    assert.equal(await within(has.session.prompt("after a cut").text()), "after a cut");

    assert.deepEqual(order, ["0", "1", "2", "3"]);
    assert.equal(reports.filter((text) => text.includes("going on over HTTP")).length, 1);
    assert.equal(count(/upgrade: websocket/i), 1);
    assert.ok(count(/^POST \/v1\/rpc /) >= 5);
  });

  for (const transport of ["websocket", "http"] as const) {
    test(`a network that goes silent is given up, over ${transport}`, BOUNDED, async () => {
      await using has = await made({ transport, silenceTimeout: 400 });
      const turn = has.session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "ended"]));
      await until(turn[Symbol.asyncIterator](), (item) => textOf(item) === "begun");

      proxy.silence();

      await within(turn.cancel());
      const rest = await within(all(turn));
      assert.equal(rest.filter((item) => textOf(item) === "ended").length, 1);
      assert.equal((await within(turn)).stopReason, "cancelled");
    });
  }

  test("a POST whose socket goes silent is sent again, and its answer comes on the stream", BOUNDED, async () => {
    await using has = await made({ transport: "http", silenceTimeout: 400 });
    let posts = 0;
    proxy.judge((data, direction) => {
      if (direction === "up" && data.includes("said once") && ++posts === 1) proxy.silence();
      return false;
    });

    assert.equal(await within(has.session.prompt("said once").text()), "said once");

    assert.ok(posts >= 2);
  });
});

test("without a WebSocket there is a clear error", { skip: hasSocket ? "this Node has one" : false }, async () => {
  await assert.rejects(SandboxAgent.connect("http://127.0.0.1:9", { transport: "websocket" }), InvalidCall);
});

function isReceipt(data: Buffer): boolean {
  return /"id":"[0-9a-f]{32}","result"/.test(data.toString());
}
