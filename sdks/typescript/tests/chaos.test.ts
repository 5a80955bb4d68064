/** A server that is killed, stopped and cut off at any moment: every turn is whole or fails, every event comes once. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type ConnectOptions, type Gap, type LogEvent, RequestError, type Session, textOf } from "sandboxagent";

import { Proxy, randomness } from "./support/proxy.js";
import { TestServer, program } from "./support/server.js";
import { eventually, logOf, within } from "./support/waiting.js";

const BOUNDED = { timeout: 540_000 };
const ROUNDS = 3;
/** What a turn ends with whose server died; `node-lost` comes from a gateway. */
const UNKNOWN = ["outcome-unknown", "node-lost"];
const EXPECTED = [...Array(200).keys(), ...Array(200).keys()];

const WAYS: Readonly<Record<string, ConnectOptions>> = {
  "with answers by POST": { respondAsync: false },
  "with answers on the stream": { respondAsync: true },
  "over a WebSocket": { transport: "websocket" },
};

for (const [name, way] of Object.entries(WAYS)) {
  test(name, BOUNDED, async () => {
    const seed = Number(process.env["SDK_SEED"] ?? Date.now() % 1_000_000);
    const random = randomness(seed);
    const server = await TestServer.start();
    const proxy = await Proxy.open(() => server.url);
    const client = await server.connect({ url: proxy.url, ...way });
    const session = await client.sessions.create({ cwd: server.work });
    const followed: (LogEvent | Gap)[] = [];
    const following = (async () => {
      for await (const event of session.log()) followed.push(event);
    })();
    let ended = 0;
    let over = false;
    // On a busy machine a server that is killed at a fixed pace never gets to work: after two strikes without any
    // progress the third waits for some.
    const trouble = (async () => {
      let before = 0;
      for (let strikes = 0; !over; strikes += 1) {
        const progress = (): number => followed.length + ended;
        if (progress() > before) strikes = 0;
        if (strikes >= 2) await eventually(() => over || progress() > before, "progress");
        before = progress();
        await new Promise((resolve) => setTimeout(resolve, 50 + random() * 600));
        const dice = random();
        if (dice < 0.4) proxy.cut();
        else await server.restart(dice < 0.7 ? "SIGKILL" : "SIGTERM");
      }
    })();

    for (let round = 0; round < ROUNDS; round += 1) {
      await within(oneTurn(session, seed), `round ${round}`);
      ended += 1;
    }
    over = true;
    await trouble;

    assert.equal(await within(session.prompt("calm").text(), "the calm"), "calm");
    await session.terminate();
    await within(following, "the end of the log");
    assert.deepEqual(followed, await logOf(session), `SDK_SEED=${seed}`);
    await client.close();
    await proxy.close();
    await server.close();
  });
}

/** A turn gives what its agent says from the beginning on, once and in order; all of it, unless the server died. */
async function oneTurn(session: Session, seed: number): Promise<void> {
  const seen: number[] = [];
  let failure: unknown;
  try {
    for await (const item of session.prompt(program(["flood", 200, 20], ["sleep", 0.1], ["flood", 200, 20]))) {
      if (textOf(item)) seen.push(Number.parseInt(textOf(item)));
    }
  } catch (error) {
    failure = error;
  }
  assert.deepEqual(seen, failure ? EXPECTED.slice(0, seen.length) : EXPECTED, `SDK_SEED=${seed}`);
  if (failure) {
    assert.ok(failure instanceof RequestError, String(failure));
    assert.ok(UNKNOWN.includes((failure.data as { type?: string }).type ?? ""), JSON.stringify(failure.data));
  }
}
