/** What agents ask, and who answers: handlers, answers by id, other clients, and reject in doubt. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import {
  type ConnectOptions,
  type Decision,
  type PermissionRequest,
  type QuestionRequest,
  RequestError,
  SandboxAgent,
  ServerProblem,
  type Session,
  textOf,
} from "sandboxagent";

import { Remembering } from "./support/logger.js";
import { TestServer, program } from "./support/server.js";
import { Arrival, all, eventually, logOf, until, within } from "./support/waiting.js";

const BOUNDED = { timeout: 180_000 };
const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "ever", name: "Always", kind: "allow_always" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const PERMISSION = permission(OPTIONS);
const QUESTION = {
  questionId: "q-1",
  prompt: "Which?",
  options: [
    ["red", "Red"],
    ["blue", "Blue"],
  ],
  questions: [
    {
      header: "Color",
      question: "Which?",
      multiSelect: false,
      options: [
        { id: "red", label: "Red" },
        { id: "blue", label: "Blue" },
      ],
    },
    {
      header: "Sizes",
      question: "Which sizes?",
      multiSelect: true,
      options: [
        { id: "s", label: "S" },
        { id: "m", label: "M" },
      ],
    },
  ],
};
const FORM = {
  mode: "form",
  message: "How many?",
  requestedSchema: { type: "object", properties: { amount: { type: "integer", minimum: 1 } }, required: ["amount"] },
};

function permission(options: unknown[]): unknown {
  return { toolCall: { toolCallId: "c-1", title: "Write a file", kind: "edit" }, options };
}

describe("what agents ask", () => {
  let server: TestServer;

  before(async () => {
    server = await TestServer.start();
  });

  after(async () => {
    await server.close();
  });

  /** A client with these options, and a session of its; the client is closed at the end of the block. */
  async function asked(
    options: ConnectOptions = {},
  ): Promise<{ client: SandboxAgent; session: Session } & AsyncDisposable> {
    const client = await server.connect(options);
    const session = await client.sessions.create({ cwd: server.work });
    return { client, session, [Symbol.asyncDispose]: () => client.close() };
  }

  /** What the agent was answered. */
  async function answer(
    session: Session,
    method: string,
    params: unknown,
  ): Promise<{ result?: Record<string, unknown>; error?: unknown }> {
    const text = await within(session.prompt(program(["ask", method, params], ["echo_answer"])).text(), "the turn");
    return JSON.parse(text) as { result?: Record<string, unknown>; error?: unknown };
  }

  const outcome = async (session: Session, options: unknown[] = OPTIONS): Promise<unknown> =>
    (await answer(session, "session/request_permission", permission(options))).result?.["outcome"];

  describe("permissions", () => {
    test("a handler is told what is wanted and decides", BOUNDED, async () => {
      const requests: PermissionRequest[] = [];
      const onPermission = (request: PermissionRequest): ReturnType<PermissionRequest["allow"]> => {
        requests.push(request);
        return request.allow();
      };
      await using made = await asked({ onPermission });

      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "yes" });
      assert.equal(requests[0]?.sessionId, made.session.id);
      assert.equal(requests[0]?.toolCall.title, "Write a file");
      assert.deepEqual(requests[0]?.options, OPTIONS);
    });

    for (const [name, decide, optionId] of [
      ["allowAlways", (request: PermissionRequest) => request.allowAlways(), "ever"],
      ["reject", (request: PermissionRequest) => request.reject(), "no"],
      ["select", (request: PermissionRequest) => request.select("ever"), "ever"],
    ] as const) {
      test(`${name} chooses by the kind of the option`, BOUNDED, async () => {
        await using made = await asked({ onPermission: async (request) => decide(request) });

        assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId });
      });
    }

    test("a rejection may have a reason, which the agent and the decision have", BOUNDED, async () => {
      const reason = "Not on a Friday.";
      await using made = await asked({ onPermission: (request) => request.reject({ reason }) });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const items = await all(turn);

      const told = JSON.parse(items.map(textOf).join("")) as { result: Record<string, unknown> };
      assert.deepEqual(told.result["_meta"], { "sandboxagent.dev": { reason } });
      const decision = items.find((item): item is Decision => item.sessionUpdate === "decision");
      assert.deepEqual([decision?.reason, decision?.optionId], [reason, "no"]);
    });

    test("cancel chooses nothing", BOUNDED, async () => {
      await using made = await asked({ onPermission: (request) => request.cancel() });

      assert.deepEqual(await outcome(made.session), { outcome: "cancelled" });
    });

    test("allow rejects when there are two ways to allow, and says so", BOUNDED, async () => {
      const logger = new Remembering();
      await using made = await asked({ logger, onPermission: (request) => request.allow() });
      const doubtful = [...OPTIONS, { optionId: "yes-too", name: "Yes", kind: "allow_once" }];

      assert.deepEqual(await outcome(made.session, doubtful), { outcome: "selected", optionId: "no" });
      assert.match(logger.warnings.join(), /not one allow_once/);
    });

    test("allow of what cannot be allowed or rejected is cancelled", BOUNDED, async () => {
      await using made = await asked({ onPermission: (request) => request.allow() });

      assert.deepEqual(await outcome(made.session, [OPTIONS[1]!]), { outcome: "cancelled" });
    });

    test("a handler that throws rejects", BOUNDED, async () => {
      const logger = new Remembering();
      const onPermission = (): never => {
        throw new Error("a bug");
      };
      await using made = await asked({ logger, onPermission });

      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "no" });
      assert.match(logger.errors.join(), /a handler failed/);
    });

    test("an answer of a handler that was not offered is logged, and rejected", BOUNDED, async () => {
      const logger = new Remembering();
      await using made = await asked({ logger, onPermission: (request) => request.select("made up") });

      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "no" });
      assert.match(logger.errors.join(), /was refused, rejecting/);
    });

    test("a session's own handler wins, and a handler can be replaced", BOUNDED, async () => {
      await using made = await asked({ onPermission: (request) => request.reject() });
      made.session.onPermission((request) => request.allow());
      const other = await made.client.sessions.create({ cwd: server.work });

      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "yes" });
      assert.deepEqual(await outcome(other), { outcome: "selected", optionId: "no" });
      made.client.onPermission((request) => request.allowAlways());
      assert.deepEqual(await outcome(other), { outcome: "selected", optionId: "ever" });
    });

    test("what a handler defers is answered later by its id", BOUNDED, async () => {
      const deferred = new Arrival<PermissionRequest>();
      await using made = await asked({ onPermission: (request) => deferred.arrive(request) });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const request = await deferred;
      assert.deepEqual(made.client.requests(), [request]);
      const [pending] = await made.session.pending();
      assert.deepEqual([pending?.id, pending?.kind, pending?.sessionId], [request.id, "permission", made.session.id]);

      await made.client.replyPermission(request.id, "ever");

      assert.match(await turn.text(), /"optionId": ?"ever"/);
      assert.deepEqual(made.client.requests(), []);
      assert.equal(request.signal.aborted, true);
    });

    test("an answer by id that does not fit is refused, and the request stays open", BOUNDED, async () => {
      const deferred = new Arrival<PermissionRequest>();
      await using made = await asked({ onPermission: (request) => deferred.arrive(request) });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const { id, signal } = await deferred;

      await assert.rejects(within(made.client.replyPermission(id, "made up")), problem("wrong-answer", 422));
      await assert.rejects(within(made.client.replyPermission(id, "as well")), problem("wrong-answer", 422));
      assert.equal(signal.aborted, false);
      await made.client.rejectPermission(id);

      assert.match(await turn.text(), /"optionId": ?"no"/);
    });

    test("an answer that comes too late, or to nobody, is a ServerProblem", BOUNDED, async () => {
      const deferred = new Arrival<PermissionRequest>();
      await using made = await asked({ onPermission: (request) => deferred.arrive(request) });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["wait_answer"]));
      const { id } = await deferred;
      await made.client.rejectPermission(id);

      await assert.rejects(made.client.replyPermission(id, "yes"), problem("already-answered", 409));
      await assert.rejects(made.client.replyPermission("never", "yes"), problem("nobody-asked", 404));
      await assert.rejects(made.client.replyQuestion("never", ["yes"]), problem("nobody-asked", 404));
      await turn;
    });

    test("the first of two clients wins, and the other's handler is told", BOUNDED, async () => {
      const deferred = new Arrival<PermissionRequest>();
      const aborted = new Arrival();
      await using made = await asked({
        onPermission: async (request) => {
          deferred.arrive(request);
          await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
          aborted.arrive();
          return request.allow();
        },
      });
      const asking = new Arrival<PermissionRequest>();
      const other = await server.connect({
        name: "other",
        user: "ada",
        onPermission: (request) => asking.arrive(request),
      });
      await other.sessions.attach(made.session.id);
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const [{ id }] = await Promise.all([asking, deferred]);

      await other.rejectPermission(id);

      await aborted;
      assert.match(await turn.text(), /"optionId": ?"no"/);
      const decision = (await all(turn)).find((item): item is Decision => item.sessionUpdate === "decision");
      assert.equal(decision?.by["client"], "other");
      assert.equal(decision?.by["user"], "ada");
      await other.close();
    });

    test("the second of two clients is refused with the outcome", BOUNDED, async () => {
      const here = new Arrival<PermissionRequest>();
      const there = new Arrival<PermissionRequest>();
      await using made = await asked({ onPermission: (request) => here.arrive(request) });
      const other = await server.connect({ onPermission: (request) => there.arrive(request) });
      await other.sessions.attach(made.session.id);
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["wait_answer"]));
      const [mine, its] = [await here, await there];

      const results = await Promise.allSettled([
        made.client.replyPermission(mine.id, "yes"),
        other.replyPermission(its.id, "no"),
      ]);

      const refused = results.filter((result) => result.status === "rejected");
      assert.equal(refused.length, 1);
      assert.ok(problem("already-answered", 409)(refused[0]?.reason));
      await turn;
      await other.close();
    });

    test("a request that its agent takes back aborts the handler, and nothing is sent", BOUNDED, async () => {
      const asking = new Arrival<PermissionRequest>();
      const decided = new Arrival();
      await using made = await asked({
        onPermission: async (request) => {
          asking.arrive(request);
          await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
          setImmediate(() => decided.arrive());
          return request.allow();
        },
      });
      const sent: unknown[] = [];
      made.client.tap((direction, envelope) => {
        if (direction === "sent" && !("method" in envelope)) sent.push(envelope);
      });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["wait_cancel"]));
      const { id } = await asking;

      const elsewhere = await made.client.sessions.create({ cwd: server.work });
      // A gateway gives it another id than its agent, whose own one is in the log.
      const log = (await logOf(made.session)).map(({ envelope }) => envelope as { method?: string; id?: number });
      const own = log.findLast(({ method }) => method === "session/request_permission")?.id;
      await elsewhere.prompt(program(["cancel_own", own]));

      await decided;
      assert.deepEqual(sent, []);
      await assert.rejects(made.client.replyPermission(id, "yes"), problem("already-answered", 409));
      await turn.cancel();
      await turn;
    });

    test("a request that is taken back at once is asked of nobody", BOUNDED, async () => {
      await using made = await asked({ onPermission: (request) => request.allow() });
      const steps = [["ask", "session/request_permission", PERMISSION], ["cancel_own"]];
      const many = Array.from({ length: 30 }, () => steps).flat();

      assert.equal(await made.session.prompt(program(...many, ["say", "never mind"])).text(), "never mind");

      await eventually(() => made.client.requests().length === 0, "the end of all requests");
    });

    test("cancelling the turn aborts the handler", BOUNDED, async () => {
      const asking = new Arrival<PermissionRequest>();
      await using made = await asked({ onPermission: (request) => asking.arrive(request) });
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      const { signal } = await asking;

      await turn.cancel();

      assert.match(await turn.text(), /"cancelled"/);
      await eventually(() => signal.aborted, "the abort");
    });

    test("with no handler it is left open for other clients, with one warning", BOUNDED, async () => {
      const logger = new Remembering();
      await using made = await asked({ logger });
      const other = await server.connect({
        onPermission: async (request) => {
          // What is settled at once is asked of nobody else.
          await eventually(() => made.client.requests().length === 1, "the request");
          return request.allow();
        },
      });
      await other.sessions.attach(made.session.id);

      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "yes" });
      assert.deepEqual(await outcome(made.session), { outcome: "selected", optionId: "yes" });

      assert.equal(logger.warnings.filter((warning) => warning.includes("left open")).length, 1);
      await other.close();
    });

    test("what is open already is asked of whoever attaches", BOUNDED, async () => {
      await using made = await asked();
      const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["echo_answer"]));
      await eventually(async () => (await made.session.info()).pending === 1, "the request");
      const other = await server.connect({ onPermission: (request) => request.allow() });

      await other.sessions.attach(made.session.id);

      assert.match(await within(turn.text()), /"yes"/);
      await other.close();
    });

    test("an option of a kind that nobody knows harms nothing", BOUNDED, async () => {
      await using made = await asked({ onPermission: (request) => request.allow() });

      assert.deepEqual(
        await outcome(made.session, [...OPTIONS, { optionId: "x", name: "X", kind: "of_a_newer_protocol" }]),
        {
          outcome: "selected",
          optionId: "yes",
        },
      );
    });

    test("a request of a method that we do not know is left to others", BOUNDED, async () => {
      await using made = await asked();
      const turn = made.session.prompt(program(["ask", "x/anything", {}], ["say", "asked"]));

      assert.equal(await turn.text(), "asked");
    });
  });

  describe("questions", () => {
    test("a handler answers each question", BOUNDED, async () => {
      const requests: QuestionRequest[] = [];
      await using made = await asked({
        onQuestion: (request) => {
          requests.push(request);
          return request.answer("red", ["s", "m"]);
        },
      });

      const { result } = await answer(made.session, "_sandboxagent/session/request_question", QUESTION);

      assert.deepEqual(result, { status: "answered", answers: [["red"], ["s", "m"]] });
      assert.deepEqual([requests[0]?.questionId, requests[0]?.prompt], ["q-1", "Which?"]);
      assert.deepEqual(requests[0]?.questions, QUESTION.questions);
    });

    test("a question can be rejected, and is when its handler fails", BOUNDED, async () => {
      await using made = await asked({ onQuestion: (request) => request.reject() });
      assert.deepEqual((await answer(made.session, "_sandboxagent/session/request_question", QUESTION)).result, {
        status: "rejected",
      });

      made.client.onQuestion(async () => {
        await Promise.reject(new Error("a bug"));
      });
      assert.deepEqual((await answer(made.session, "_sandboxagent/session/request_question", QUESTION)).result, {
        status: "rejected",
      });
    });

    test("replyQuestion and rejectQuestion answer by the request's id, not by the agent's own", BOUNDED, async () => {
      let deferred = new Arrival<QuestionRequest>();
      await using made = await asked({ onQuestion: (request) => deferred.arrive(request) });
      const steps = program(["ask", "_sandboxagent/session/request_question", QUESTION], ["echo_answer"]);
      let turn = made.session.prompt(steps);
      const { id, questionId } = await deferred;
      assert.match(id, /^rq_/);
      assert.equal(questionId, "q-1");
      const [pending] = await made.client.pending(made.session.id);
      assert.deepEqual([pending?.id, pending?.kind], [id, "question"]);

      await assert.rejects(within(made.client.replyQuestion("q-1", ["red"])), problem("nobody-asked", 404));
      await assert.rejects(within(made.client.replyPermission(id, "red")), problem("nobody-asked", 404));
      await assert.rejects(within(made.client.replyQuestion(id, ["red"])), problem("wrong-answer", 422));
      await made.client.replyQuestion(id, ["a colour of my own", []]);
      assert.deepEqual(JSON.parse(await turn.text()).result.answers, [["a colour of my own"], []]);

      deferred = new Arrival();
      turn = made.session.prompt(steps);
      const second = await deferred;
      assert.notEqual(second.id, id);
      await assert.rejects(made.client.replyQuestion(id, ["red", []]), problem("already-answered", 409));
      await made.client.rejectQuestion(second.id);
      assert.deepEqual(JSON.parse(await turn.text()).result, { status: "rejected" });
    });

    test("a form comes as a question to a client without onElicitation", BOUNDED, async () => {
      await using made = await asked({ onQuestion: (request) => request.answer("3") });

      const { result } = await answer(made.session, "elicitation/create", FORM);

      assert.deepEqual(result, { action: "accept", content: { amount: 3 } });
    });
  });

  describe("forms", () => {
    test("a handler fills in the form", BOUNDED, async () => {
      await using made = await asked({
        onElicitation: (request) => {
          assert.deepEqual([request.message, request.mode], ["How many?", "form"]);
          assert.deepEqual(request.schema?.properties?.["amount"], { type: "integer", minimum: 1 });
          return request.accept({ amount: 2 });
        },
      });

      assert.deepEqual((await answer(made.session, "elicitation/create", FORM)).result, {
        action: "accept",
        content: { amount: 2 },
      });
    });

    test("an address comes as it is", BOUNDED, async () => {
      await using made = await asked({
        onElicitation: (request) =>
          request.url === "https://example.test/login" ? request.accept() : request.cancel(),
      });
      const params = { mode: "url", message: "Log in", url: "https://example.test/login", elicitationId: "e-1" };

      assert.deepEqual((await answer(made.session, "elicitation/create", params)).result, { action: "accept" });
    });

    test("a form that was filled in wrongly is declined for a handler, and refused for a reply", BOUNDED, async () => {
      const logger = new Remembering();
      await using made = await asked({ logger, onElicitation: (request) => request.accept({ amount: 0 }) });
      assert.deepEqual((await answer(made.session, "elicitation/create", FORM)).result, { action: "decline" });
      assert.match(logger.errors.join(), /was refused/);

      const deferred = new Arrival<{ id: string }>();
      made.session.onElicitation((request) => deferred.arrive(request));
      const turn = made.session.prompt(program(["ask", "elicitation/create", FORM], ["echo_answer"]));
      const { id } = await deferred;
      await assert.rejects(within(made.client.replyElicitation(id, { amount: 0 })), problem("wrong-answer", 422));
      await made.client.replyElicitation(id, { amount: 5 });
      assert.deepEqual(JSON.parse(await turn.text()).result, { action: "accept", content: { amount: 5 } });
    });

    test("rejectElicitation declines", BOUNDED, async () => {
      const deferred = new Arrival<{ id: string }>();
      await using made = await asked({ onElicitation: (request) => deferred.arrive(request) });
      const turn = made.session.prompt(program(["ask", "elicitation/create", FORM], ["echo_answer"]));

      await made.client.rejectElicitation((await deferred).id);

      assert.deepEqual(JSON.parse(await turn.text()).result, { action: "decline" });
    });

    test("onElicitation must be given before the connection is open", BOUNDED, async () => {
      await using made = await asked();

      assert.throws(() => made.client.onElicitation((request) => request.decline()), /too late/);
      assert.throws(() => made.session.onElicitation((request) => request.decline()), /give onElicitation to connect/);
      const early = await server.connect();
      early.onElicitation((request) => request.accept({ amount: 1 }));
      const session = await early.sessions.create({ cwd: server.work });
      assert.deepEqual((await answer(session, "elicitation/create", FORM)).result, {
        action: "accept",
        content: { amount: 1 },
      });
      await early.close();
    });

    test("a question comes as a form to a client that has only onElicitation", BOUNDED, async () => {
      await using made = await asked({ onElicitation: (request) => request.accept({ question_0: "blue" }) });

      const { result } = await answer(made.session, "_sandboxagent/session/request_question", QUESTION);

      assert.deepEqual(result, { status: "answered", answers: [["blue"], []] });
    });
  });

  test("an agent that dies while it asks aborts the handler", BOUNDED, async () => {
    const asking = new Arrival<PermissionRequest>();
    await using made = await asked({ onPermission: (request) => asking.arrive(request) });
    const turn = made.session.prompt(program(["ask", "session/request_permission", PERMISSION], ["exit", 1]));

    const { signal, id } = await asking;

    await assert.rejects(async () => await turn, RequestError);
    await eventually(() => signal.aborted, "the abort");
    await assert.rejects(made.client.replyPermission(id, "yes"), problem("already-answered", 409));
  });

  test("an unread loop holds up no permission", BOUNDED, async () => {
    await using made = await asked({ buffer: 100, onPermission: (request) => request.allow() });
    const unread = made.session.updates();
    const turn = made.session.prompt(
      program(["flood", 500, 100], ["ask", "session/request_permission", PERMISSION], ["wait_answer"], ["say", "done"]),
    );

    assert.equal((await within(turn)).stopReason, "end_turn");

    const last = await until(unread, (item) => textOf(item) === "done");
    assert.equal(textOf(last), "done");
  });
});

function problem(slug: string, status: number): (error: unknown) => boolean {
  return (error) => error instanceof ServerProblem && error.slug === slug && error.status === status;
}
