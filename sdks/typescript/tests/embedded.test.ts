/** A private server: it starts and ends with this process, however that ends. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { ConnectionLost, SandboxAgent, ServerProblem, StartFailed, type StartOptions } from "sandboxagent";

import { Place, children } from "./support/embedding.js";
import { Remembering } from "./support/logger.js";
import { alive, program } from "./support/server.js";
import { all, eventually, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const HOST = fileURLToPath(new URL("support/host.js", import.meta.url));
const PERMISSION = [
  "ask",
  "session/request_permission",
  {
    toolCall: { toolCallId: "c" },
    options: [
      { optionId: "yes", name: "Yes", kind: "allow_once" },
      { optionId: "no", name: "No", kind: "reject_once" },
    ],
  },
];

describe("embedded", () => {
  let place: Place;

  before(() => {
    place = new Place();
  });

  after(() => {
    place.close();
  });

  const start = async (options: StartOptions = {}): Promise<SandboxAgent> =>
    await SandboxAgent.start(place.options(options));

  test("a session is in the host's own directory unless told otherwise", BOUNDED, async () => {
    await using client = await start();

    const session = await client.sessions.create();

    assert.equal(session.cwd, process.cwd());
    assert.equal((await session.info()).cwd, process.cwd());
    assert.equal(await session.prompt("hello").text(), "hello");
    assert.match(client.url, /^http:\/\/127\.0\.0\.1:\d+$/);
  });

  test("closing the client ends the server, and leaves nothing", BOUNDED, async () => {
    const client = await start();
    const [server] = children();
    const session = await client.sessions.create();
    const agent = Number(await session.prompt(program(["pid"])).text());
    assert.equal(place.leftovers.length, 1);

    await client.close();

    assert.deepEqual([alive(server!), alive(agent)], [false, false]);
    assert.deepEqual(place.leftovers, []);
    await client.close();
  });

  test("the token is private: in no command line, and nobody is let in without it", BOUNDED, async () => {
    await using client = await start();
    const [server] = children();

    assert.ok(client.token !== undefined && client.token.length >= 32);
    assert.ok(!readFileSync(`/proc/${server}/cmdline`, "utf8").includes(client.token));
    await assert.rejects(
      SandboxAgent.connect(client.url),
      (error) => error instanceof ServerProblem && error.slug === "unauthorized",
    );
    await using other = await SandboxAgent.connect(client.url, { token: client.token });
    assert.equal((await other.health()).status, "ok");
  });

  test("it is in a session of its own, so that a Ctrl-C is ours alone", BOUNDED, async () => {
    await using client = await start();
    const [server] = children();
    const session = (pid: number): string | undefined =>
      readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ")[3];

    assert.equal(session(server!), String(server));
    assert.notEqual(session(process.pid), String(server));
    assert.ok(client.url);
  });

  test("with a directory for its data, sessions are there the next time", BOUNDED, async () => {
    const first = await start({ dataDir: place.data });
    const session = await first.sessions.create();
    await session.prompt("remember me");
    await first.close();

    await using second = await start({ dataDir: place.data });

    assert.deepEqual(
      (await all(second.sessions.list())).map((info) => info.sessionId),
      [session.id],
    );
    const resumed = await second.sessions.attach(session.id);
    assert.match(JSON.stringify(await all(resumed.history())), /remember me/);
    assert.equal(await resumed.prompt("and on").text(), "and on");
  });

  test("options are flags of the server, and variables are its own", BOUNDED, async () => {
    await using client = await start({
      options: { fsRoot: [place.temporary], "max-file": 10, noPersist: true, heartbeat: undefined },
    });

    await assert.rejects(
      client.files.stat("/etc/passwd"),
      (error) => error instanceof ServerProblem && error.slug === "outside-roots",
    );
    await assert.rejects(
      client.files.write(`${place.temporary}/large`, "12345678901"),
      (error) => error instanceof ServerProblem && error.slug === "file-too-large",
    );
    for (const name of ["token", "dataDir", "no_token", "embedded"]) {
      await assert.rejects(start({ options: { [name]: "x" } }), /cannot be among the options/);
    }
  });

  test("with no handler nothing is allowed, and it is said", BOUNDED, async () => {
    const logger = new Remembering();
    await using client = await start({ logger });
    const session = await client.sessions.create();

    const text = await session.prompt(program(PERMISSION, ["echo_answer"])).text();

    assert.match(text, /"optionId": ?"no"/);
    assert.match(logger.warnings.join(), /there is no handler for a PermissionRequest, so it is rejected/);
    const question = {
      questionId: "q",
      prompt: "?",
      options: [],
      questions: [{ header: "", question: "?", options: [], multiSelect: false }],
    };
    const answer = await session
      .prompt(program(["ask", "_sandboxagent/session/request_question", question], ["echo_answer"]))
      .text();
    assert.match(answer, /"rejected"/);
    const strange = await session.prompt(program(["ask", "x/strange", {}], ["echo_answer"])).text();
    assert.match(strange, /-32601/);
  });

  test("handlers work as they do with a server elsewhere", BOUNDED, async () => {
    await using client = await start({
      agent: "mock",
      onPermission: (request) => request.allow(),
      onQuestion: (request) => request.answer("green"),
    });
    const session = await client.sessions.create();

    assert.match(await session.prompt("permission").text(), /allow_once/);
    assert.match(await session.prompt("question").text(), /green/);
  });

  test("a server that dies is told of, and its calls fail", BOUNDED, async () => {
    const logger = new Remembering();
    const client = await start({ logger });
    const [server] = children();
    const session = await client.sessions.create();
    const turn = session.prompt(program(["wait_cancel"]));
    const updates = session.updates();
    await updates.next();
    const waiting = assert.rejects(within(updates.next()), ConnectionLost);

    process.kill(server!, "SIGKILL");

    // At once: nobody will start it again.
    const ended = (error: unknown): boolean =>
      error instanceof ConnectionLost && /the private server was ended by SIGKILL/.test(error.message);
    await assert.rejects(async () => await within(turn), ended);
    await waiting;
    await assert.rejects(client.request("x/echo"), ended);
    await eventually(() => logger.warnings.some((warning) => /was ended by SIGKILL/.test(warning)), "the warning");
    await client.close();
  });

  describe("when it does not start", () => {
    test("a program that is not there is named, with what to do", BOUNDED, async () => {
      await assert.rejects(
        start({ command: ["/nowhere/sandbox-agent"] }),
        (error) => error instanceof StartFailed && /was not found; install the Python package/.test(error.message),
      );
    });

    test("SANDBOX_AGENT_BIN names the program", BOUNDED, async () => {
      process.env["SANDBOX_AGENT_BIN"] = "/nowhere/else";
      const { command: _, ...options } = place.options();
      try {
        await assert.rejects(SandboxAgent.start(options), /\/nowhere\/else was not found/);
      } finally {
        delete process.env["SANDBOX_AGENT_BIN"];
      }
    });

    test("what the server complains of is in the error", BOUNDED, async () => {
      await assert.rejects(
        start({ options: { nonsense: true } }),
        (error) => error instanceof StartFailed && /exit code 2/.test(error.message) && /nonsense/.test(error.stderr),
      );
      assert.deepEqual(children().filter(alive), []);
    });

    test("another program is none of ours", BOUNDED, async () => {
      await assert.rejects(
        start({ command: ["echo", "hello"] }),
        (error) => error instanceof StartFailed && /is no sandbox-agent/.test(error.message),
      );
    });
  });

  describe("when the host ends without closing it", () => {
    /** A host that has said which processes are its own. */
    async function host(how: string): Promise<{ process: ChildProcess; pids: number[] }> {
      const { logger: _, ...options } = place.options();
      const child = spawn(process.execPath, [HOST, how, JSON.stringify(options)], {
        stdio: ["ignore", "pipe", "ignore"],
      });
      const [line] = (await within(once(createInterface(child.stdout!), "line"), "the host's line")) as [string];
      return { process: child, pids: Object.values(JSON.parse(line) as Record<string, number>) };
    }

    async function nothingIsLeft(pids: number[]): Promise<void> {
      await eventually(() => !pids.some(alive), "the end of all processes");
      await eventually(() => place.leftovers.length === 0, "the end of its directory");
    }

    for (const how of ["SIGKILL", "SIGINT", "SIGTERM"] as const) {
      test(`by ${how}, nothing is left`, BOUNDED, async () => {
        const { process: child, pids } = await host("wait");
        assert.equal(pids.filter(alive).length, 2);

        child.kill(how);

        await nothingIsLeft(pids);
      });
    }

    for (const how of ["exit", "throw"] as const) {
      test(`by ${how}, nothing is left`, BOUNDED, async () => {
        const { pids } = await host(how);

        await nothingIsLeft(pids);
      });
    }

    test("a host that has nothing else to do is not kept alive by it", BOUNDED, async () => {
      const { process: child, pids } = await host("idle");

      if (child.exitCode === null) await within(once(child, "exit"), "the end of the host");

      assert.equal(child.exitCode, 0);
      await nothingIsLeft(pids);
    });
  });
});
