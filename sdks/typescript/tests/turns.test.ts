/** Prompts and what comes of them, with answers by POST and with answers on the stream. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { RequestError, type SandboxAgent, type TurnItem, textOf } from "sandboxagent";

import { TestServer, program } from "./support/server.js";
import { all, eventually, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };

for (const respondAsync of [false, true]) {
  describe(respondAsync ? "with answers on the stream" : "with answers by POST", () => {
    let server: TestServer;
    let client: SandboxAgent;

    before(async () => {
      server = await TestServer.start();
      client = await server.connect({ respondAsync });
    });

    after(async () => {
      await client.close();
      await server.close();
    });

    test("a turn gives its updates and then its end", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      const items = await all(session.prompt(program(["say", "one"], ["say", "two"])));

      assert.deepEqual(items.map(textOf), ["one", "two", ""]);
      const end = items.at(-1);
      assert.ok(end?.sessionUpdate === "turn_ended");
      assert.equal(end.stopReason, "end_turn");
      assert.match(end.turnId ?? "", /^turn-\d+$/);
    });

    test("awaiting a turn gives its end", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      const end = await session.prompt("hello");

      assert.equal(end.stopReason, "end_turn");
      assert.equal(end.sessionUpdate, "turn_ended");
    });

    test("text is everything that the agent said", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      assert.equal(await session.prompt(program(["say", "Hällo "], ["say", "wörld 🌍"])).text(), "Hällo wörld 🌍");
    });

    test("a turn can be looped over, read as text and awaited, in any order and more than once", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const turn = session.prompt(program(["say", "a"], ["say", "b"]));

      assert.equal(await turn.text(), "ab");
      assert.deepEqual((await all(turn)).map(textOf), ["a", "b", ""]);
      assert.equal((await turn).stopReason, "end_turn");
      assert.deepEqual((await all(turn)).at(-1), await turn);
    });

    test("no answer comes before its updates, however many they are", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const seen: string[] = [];
      const turn = session.prompt(program(["flood", 3000, 20]));
      const reading = (async () => {
        for await (const item of turn) if (textOf(item)) seen.push(textOf(item));
      })();

      await turn;
      // What was heard before the answer is there to be read without another event.
      await reading;

      assert.equal(seen.length, 3000);
      assert.deepEqual(
        seen.map((text) => Number.parseInt(text)),
        [...seen.keys()],
      );
    });

    test("updates of different kinds keep their order", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const kinds = Array.from({ length: 300 }, (_, index) => index % 3);
      const steps = kinds.map((kind, index) => {
        if (kind === 0) return ["say", String(index)];
        if (kind === 1)
          return ["update", { sessionUpdate: "agent_thought_chunk", content: { type: "text", text: String(index) } }];
        return ["update", { sessionUpdate: "of_a_newer_protocol", index }];
      });

      const items = (await all(session.prompt(program(...steps)))).slice(0, -1);

      const indices = items.map((item) => {
        const open = item as unknown as { content?: { text: string }; index?: number };
        return open.index ?? Number(open.content?.text);
      });
      assert.deepEqual(indices, [...kinds.keys()]);
    });

    test("an update that ACP does not know, or that breaks its schema, comes as it was sent", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const strange = { sessionUpdate: "of_a_newer_protocol", deep: { er: [1, null] } };
      const broken = { sessionUpdate: "tool_call", title: 7 };

      const items = await all(session.prompt(program(["update", strange], ["update", broken])));

      assert.deepEqual(items.slice(0, 2), [strange, broken]);
    });

    test("leaving the loop leaves the turn running", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const turn = session.prompt(
        program(
          ["say", "first"],
          ["ask", "session/request_permission", { options: [], toolCall: { toolCallId: "c" } }],
          ["wait_answer"],
          ["say", "last"],
        ),
      );

      for await (const item of turn) {
        assert.equal(textOf(item), "first");
        break;
      }
      const [asked] = await pending(client, session.id);
      await client.rejectPermission(asked!.id);

      assert.equal((await turn).stopReason, "end_turn");
      assert.deepEqual((await all(turn)).map(textOf).filter(Boolean), ["first", "last"]);
    });

    test("cancelling a turn ends it", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const turn = session.prompt(program(["say", "begun"], ["wait_cancel"], ["say", "stopped"]));
      const items = turn[Symbol.asyncIterator]();
      await until(items, (item) => textOf(item) === "begun");

      await turn.cancel();

      assert.equal((await within(turn)).stopReason, "cancelled");
    });

    test("a turn that is cancelled at once is cancelled", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const turn = session.prompt(program(["wait_cancel"]));

      await turn.cancel();

      assert.equal((await within(turn)).stopReason, "cancelled");
    });

    test("cancelling a prompt that waits takes back that one alone", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });
      const running = session.prompt(program(["say", "begun"], ["wait_cancel"]));
      await until(running[Symbol.asyncIterator](), (item) => textOf(item) === "begun");
      const waiting = session.prompt("later");
      // The log has it before it can be taken back.
      await eventually(async () => JSON.stringify(await all(session.history())).includes("later"));

      await waiting.cancel();

      assert.equal((await within(waiting)).stopReason, "cancelled");
      assert.equal((await session.info()).running, true);
      await session.cancel();
      assert.equal((await within(running)).stopReason, "cancelled");
    });

    test("prompts of many sessions run at the same time", BOUNDED, async () => {
      const sessions = await Promise.all(
        Array.from({ length: 20 }, () => client.sessions.create({ cwd: server.work })),
      );

      const texts = await Promise.all(sessions.map((session, index) => session.prompt(`prompt ${index}`).text()));

      assert.deepEqual(
        texts,
        sessions.map((_, index) => `prompt ${index}`),
      );
    });

    test("an agent's crash rejects the call, and nothing else", BOUNDED, async () => {
      const other = await client.sessions.create("mock", { cwd: server.work });
      const going = other.prompt("slow 1");
      const session = await client.sessions.create({ cwd: server.work });
      const turn = session.prompt(program(["say", "so far"], ["stderr", "out of memory"], ["exit", 3]));
      const items: TurnItem[] = [];

      const failure = await (async () => {
        for await (const item of turn) items.push(item);
      })().catch((error: unknown) => error);

      assert.ok(failure instanceof RequestError);
      assert.equal(failure.code, -32603);
      const data = failure.data as { type: string; exitCode: number; stderr: { head: string[] } };
      assert.deepEqual([data.type, data.exitCode, data.stderr.head], ["agent-exited", 3, ["out of memory"]]);
      assert.deepEqual(items.map(textOf), ["so far"]);
      await assert.rejects(async () => await turn, failure);
      assert.equal((await going).stopReason, "end_turn");
      assert.equal(await session.prompt("and again").text(), "and again");
    });

    test("nobody has to look at a turn that fails", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      session.prompt(program(["respond_error", -32000, "no"]));

      assert.equal(await session.prompt("next").text(), "next");
    });

    test("what an agent answers with an error is a RequestError", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      await assert.rejects(
        async () => await session.prompt(program(["respond_error", -32011, "not today"])),
        (error) => error instanceof RequestError && error.code === -32011 && error.message === "not today",
      );
    });

    test("a prompt may be made of blocks, and carry meta", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      await session.prompt(
        [
          { type: "text", text: "one" },
          { type: "text", text: "two" },
        ],
        { meta: { trace: "t-1" } },
      );

      const received = await client.request<{ lines: string[] }>("x/received");
      const prompt = received.lines
        .map((line) => JSON.parse(line))
        .findLast((line) => line.method === "session/prompt");
      assert.deepEqual(prompt.params.prompt, [
        { type: "text", text: "one" },
        { type: "text", text: "two" },
      ]);
      assert.equal(prompt.params._meta.trace, "t-1");
    });

    test("attachments go with the prompt", BOUNDED, async () => {
      const session = await client.sessions.create("mock", { cwd: server.work });
      await session.files.write("notes/a.txt", "content");
      await session.files.write("b.csv", "1,2");

      const text = await session
        .prompt("look", { attachments: ["notes/a.txt", { path: "b.csv", mime: "text/csv", filename: "table" }] })
        .text();

      assert.match(text, /a\.txt .*text\/plain/);
      assert.match(text, /table .*text\/csv/);
    });

    test("a file that is not there is refused before anything is sent", BOUNDED, async () => {
      const session = await client.sessions.create({ cwd: server.work });

      await assert.rejects(
        async () => await session.prompt("look", { attachments: ["nowhere.txt"] }),
        (error) => error instanceof RequestError && error.code === -32602,
      );
    });
  });
}

async function pending(client: SandboxAgent, sessionId: string): Promise<{ id: string }[]> {
  await eventually(() => client.requests().some((request) => request.sessionId === sessionId), "a request");
  return client.requests().filter((request) => request.sessionId === sessionId);
}
