/** Requests that are stored by their ids, and answered later, by another process. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { AlreadyAnswered, type SandboxAgent, ServerProblem, type Session } from "sandboxagent";

import { TestServer, program } from "./support/server.js";
import { all, eventually, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const PERMISSION: unknown[] = [
  "ask",
  "session/request_permission",
  { toolCall: { toolCallId: "c" }, options: OPTIONS },
];
const QUESTION: unknown[] = [
  "ask",
  "_sandboxagent/session/request_question",
  { prompt: "Which?", options: [["a", "A"]] },
];

describe("a stored request", () => {
  let server: TestServer;
  let app: SandboxAgent;

  before(async () => {
    server = await TestServer.start();
    app = await server.connect({ onPermission: () => undefined, onQuestion: () => undefined });
  });

  after(async () => {
    await app.close();
    await server.close();
  });

  /** What an app keeps in its database. */
  const asked = async (question = PERMISSION): Promise<{ session: Session; id: string; turn: Promise<string> }> => {
    const session = await app.sessions.create({ cwd: server.work });
    const turn = session.prompt(program(question, ["echo_answer"])).text();
    turn.catch(() => undefined);
    await eventually(async () => (await session.pending()).length === 1, "the request");
    const [request] = await session.pending();
    return { session, id: request!.id, turn };
  };

  /** A client of another process, which knows nothing of the sessions. */
  const elsewhere = async (user?: string): Promise<SandboxAgent> =>
    await server.connect({ onPermission: () => undefined, onQuestion: () => undefined, ...(user && { user }) });

  test("another process shows it and answers it by the two stored ids alone", BOUNDED, async () => {
    const { session, id, turn } = await asked();
    await using other = await elsewhere();

    const shown = (await other.pending(session.id)).find((request) => request.id === id);
    assert.ok(shown?.kind === "permission" && shown.toolCall.toolCallId === "c");
    await within(other.replyPermission(id, "yes", { sessionId: session.id }));

    assert.match(await within(turn), /"optionId": ?"yes"/);
    assert.deepEqual(await other.pending(session.id), []);
  });

  test("a second answer says who has decided, and changes nothing", BOUNDED, async () => {
    const { session, id, turn } = await asked();
    await using first = await elsewhere("ada");
    await using second = await elsewhere("bob");
    await within(first.rejectPermission(id, { sessionId: session.id, reason: "not today" }));
    assert.match(await within(turn), /"optionId": ?"no"/);

    for (const client of [second, first, app]) {
      const failure: unknown = await within(
        client.replyPermission(id, "yes", { sessionId: session.id }).catch((error: unknown) => error),
      );
      assert.ok(failure instanceof AlreadyAnswered, String(failure));
      assert.equal(failure.decision?.optionId, "no");
      assert.deepEqual([failure.decision?.by["user"], failure.decision?.reason], ["ada", "not today"]);
    }
    const decisions = (await all(session.history())).filter(({ item }) => item.sessionUpdate === "decision");
    assert.equal(decisions.length, 1);
  });

  test("of two processes that answer at once, one is told that the other was first", BOUNDED, async () => {
    const { session, id, turn } = await asked(QUESTION);
    await using first = await elsewhere();
    await using second = await elsewhere();
    const place = { sessionId: session.id };

    const answers = [first.replyQuestion(id, ["a"], place), second.replyQuestion(id, ["a"], place)];
    const results = await within(Promise.allSettled(answers));

    assert.deepEqual(results.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
    const [late] = results.filter((result) => result.status === "rejected");
    assert.ok(late?.reason instanceof AlreadyAnswered);
    await within(turn);
  });

  test("an id that never was, and one of another session or kind, answers nothing", BOUNDED, async () => {
    const [one, two] = [await asked(), await asked()];
    await using other = await elsewhere();
    const place = { sessionId: one.session.id };
    const refused = (error: unknown): boolean => error instanceof ServerProblem && error.slug === "nobody-asked";

    await assert.rejects(within(other.replyPermission("rq_stale.1", "yes", place)), refused);
    await assert.rejects(within(other.replyPermission(two.id, "yes", place)), refused);
    await assert.rejects(within(other.replyQuestion(one.id, ["yes"], place)), refused);

    assert.equal((await one.session.pending()).length, 1);
    assert.equal((await two.session.pending()).length, 1);
    for (const { session, id } of [one, two]) await other.rejectPermission(id, { sessionId: session.id });
  });

  test("after a restart of the server, a request that went with its agent is an error", BOUNDED, async () => {
    const { session, id } = await asked();
    await server.restart();
    await using other = await elsewhere();

    const failure: unknown = await within(
      other.replyPermission(id, "yes", { sessionId: session.id }).catch((error: unknown) => error),
    );

    assert.ok(failure instanceof ServerProblem, String(failure));
    assert.ok(["nobody-asked", "already-answered"].includes(failure.slug), failure.slug);
    assert.ok(!(failure instanceof AlreadyAnswered) || failure.decision?.optionId === undefined);
  });
});
