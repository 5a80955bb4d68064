/** Consumers that are slow: they get everything, once and in order, and hold nobody up. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { type Gap, type SandboxAgent, type Session, type SessionItem, textOf } from "sandboxagent";

import { TestServer, program } from "./support/server.js";
import { all, eventually, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const SMALL = 5_000;

describe("slow consumers", () => {
  let server: TestServer;
  let client: SandboxAgent;

  before(async () => {
    server = await TestServer.start();
    client = await server.connect({ buffer: SMALL });
  });

  after(async () => {
    await client.close();
    await server.close();
  });

  test("a loop that begins when all is over gets all of it", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();
    const turn = session.prompt(program(["flood", 3000, 100]));
    await within(turn);

    assert.deepEqual(numbers(await all(turn)), [...Array(3000).keys()]);

    const items: SessionItem[] = [];
    for await (const item of updates) {
      items.push(item);
      if (item.sessionUpdate === "turn_ended") break;
    }
    assert.deepEqual(numbers(items), [...Array(3000).keys()]);
    assert.deepEqual([items[0]?.sessionUpdate, items.length], ["turn_started", 3002]);
  });

  test("a loop that falls behind again and again is live in the end", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const updates = session.updates();
    const seen: SessionItem[] = [];
    const reading = (async () => {
      for await (const item of updates) {
        seen.push(item);
        // A moment for the rest of the program: enough for the buffer to run over.
        if (seen.length % 150 === 0) await new Promise((resolve) => setTimeout(resolve, 3));
        if (textOf(item) === "live") return;
      }
    })();

    for (let round = 0; round < 5; round += 1) await session.prompt(program(["flood", 600, 60]));
    await session.prompt(program(["say", "live"]));

    await within(reading);
    assert.deepEqual(numbers(seen.slice(0, -1)), Array.from({ length: 5 }, () => [...Array(600).keys()]).flat());
    const ended = seen.filter((item) => item.sessionUpdate === "turn_ended");
    assert.equal(ended.length, 5);
  });

  test("an unread loop stalls no other session and no answer", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    const unread = session.updates();
    await within(session.prompt(program(["flood", 3000, 100])));

    const other = await client.sessions.create({ cwd: server.work });

    assert.equal(await within(other.prompt("quick").text()), "quick");
    assert.equal((await unread.next()).value?.sessionUpdate, "turn_started");
    await unread.return();
  });

  test("one large update is not too large for a small buffer", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });

    const text = await within(session.prompt(program(["line", 1_000_000], ["say", "!"], ["line", 2_000_000])).text());

    assert.ok(text.length > 2_900_000);
  });

  test("prompts of others are seen once, also by a loop that is behind", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    await using other = await server.connect({ buffer: SMALL });
    const updates = (await other.sessions.attach(session.id)).updates();
    const rounds = 4;

    for (let round = 0; round < rounds; round += 1)
      await session.prompt(program(["flood", 300, 50], ["say", `round ${round}`]));
    await until(updates, (item) => item.sessionUpdate === "turn_started");

    const items: SessionItem[] = [];
    for await (const item of updates) {
      items.push(item);
      if (textOf(item) === `round ${rounds - 1}`) break;
    }
    const prompts = items.filter((item) => item.sessionUpdate === "user_message_chunk");
    assert.equal(prompts.length, rounds);
    assert.deepEqual(
      numbers(items).filter((number) => !Number.isNaN(number)),
      Array.from({ length: rounds }, () => [...Array(300).keys()]).flat(),
    );
    // Each before what was said to it.
    const order = items.filter(
      (item) => item.sessionUpdate === "user_message_chunk" || textOf(item).startsWith("round"),
    );
    assert.deepEqual(
      order.map((item) => item.sessionUpdate),
      Array.from({ length: rounds }, () => ["user_message_chunk", "agent_message_chunk"]).flat(),
    );
  });

  test("a prompt of another that had waited is seen by a loop that is behind", BOUNDED, async () => {
    const session = await client.sessions.create({ cwd: server.work });
    await using other = await server.connect();
    const theirs = await other.sessions.attach(session.id);
    const asking = ["ask", "session/request_permission", { toolCall: { toolCallId: "c" }, options: [] }];
    const first = session.prompt(program(asking, ["wait_answer"], ["flood", 300, 50]));
    await eventually(() => client.requests().length === 1, "the request");
    const second = theirs.prompt(program(["flood", 300, 50], ["say", "the end"]));
    await eventually(async () => (await prompts(session)) === 2, "the second prompt");
    const updates = session.updates();

    await client.rejectPermission(client.requests()[0]!.id);
    await within(Promise.all([first, second]));

    const items: SessionItem[] = [];
    for await (const item of updates) {
      items.push(item);
      if (textOf(item) === "the end") break;
    }
    const kinds = items.map((item) => item.sessionUpdate).filter((kind) => kind !== "agent_message_chunk");
    assert.deepEqual(kinds, ["decision", "turn_ended", "turn_started", "user_message_chunk"]);
  });
});

async function prompts(session: Session): Promise<number> {
  const events = await logOf(session);
  return events.filter(({ envelope }) => "method" in envelope && envelope.method === "session/prompt").length;
}

test("what is no longer kept is said aloud", BOUNDED, async () => {
  const server = await TestServer.start(["--no-persist", "--log-max-bytes", "200KiB", "--replay-bytes", "64KiB"]);
  const client = await server.connect({ buffer: SMALL });
  const session = await client.sessions.create({ cwd: server.work });
  const updates = session.updates();
  const turn = session.prompt(program(["flood", 8000, 200], ["say", "the end"]));
  await within(turn, "the turn");
  const isTrimmed = async (): Promise<boolean> => (await all(session.history())).some(({ at }) => at === undefined);
  await eventually(isTrimmed, "the trim");

  const items: SessionItem[] = [];
  for await (const item of updates) {
    items.push(item);
    if (item.sessionUpdate === "turn_ended") break;
  }

  const gap = items.find((item): item is Gap => item.sessionUpdate === "gap");
  assert.ok(gap !== undefined && gap.resumesAt > gap.after);
  const seen = numbers(items).filter((number) => !Number.isNaN(number));
  assert.deepEqual(
    seen,
    seen.toSorted((a, b) => a - b),
  );
  assert.ok(seen.length < 8000);
  assert.ok((await all(turn)).some((item) => item.sessionUpdate === "gap"));
  await client.close();
  await server.close();
});

function numbers(items: SessionItem[]): number[] {
  return items
    .filter((item) => item.sessionUpdate === "agent_message_chunk")
    .map((item) => Number.parseInt(textOf(item)));
}
