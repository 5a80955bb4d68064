import {
  ElicitationRequest,
  EventIds,
  PermissionRequest,
  QuestionRequest,
  type RequestItem,
  type SandboxAgent,
  type SessionView,
  requestFacts,
} from "sandboxagent";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { SettledAlready, answerAsked, give, requestOf } from "./answering.js";
import { OpenRequests, type OpenRequest } from "./open-requests.js";
import { cardsOf, isAhead, pendingOf } from "./pending.js";

type Params = Readonly<Record<string, unknown>>;

const PERMISSION = "session/request_permission";
const QUESTION = "_sandboxagent/session/request_question";
const FORM = "elicitation/create";
const OPTIONS = [
  { optionId: "yes", name: "Allow once", kind: "allow_once" },
  { optionId: "no", name: "Reject", kind: "reject_once" },
];
const ALLOW = { type: "option", optionId: "yes" } as const;

/** What a permission to run a command has; always of the same tool call, with the same options. */
function running(command: string, more: Params = {}): Params {
  return { sessionId: "s-1", toolCall: { toolCallId: "call-1", rawInput: { command } }, options: OPTIONS, ...more };
}

/** As the log has it. */
function logged(method: string, id: string | number, params: Params): RequestItem {
  return {
    type: "request",
    key: `asked-${id}`,
    events: EventIds.of(1),
    at: "2026-01-31T12:00:00.000Z",
    requestId: typeof id === "string" ? id : undefined,
    agentRequestId: id,
    turnKey: "turn-1",
    decision: undefined,
    ...requestFacts(method, copied(params))!,
  };
}

/** As this page is asked. */
function opened(method: string, id: string, params: Params, signal = new AbortController().signal): OpenRequest {
  if (method === PERMISSION) return new PermissionRequest(id, copied(params), signal, console);
  return method === QUESTION ? new QuestionRequest(id, copied(params), signal) : new ElicitationRequest(id, copied(params), signal);
}

/** Another object, with its names in another order. */
function copied(params: Params): Params {
  return JSON.parse(JSON.stringify(Object.fromEntries(Object.entries(params).reverse()))) as Params;
}

/** A page that is asked, and what it has answered. */
function page() {
  const open = new OpenRequests();
  const replies: [string, string][] = [];
  const client = {
    replyPermission: async (id: string, optionId: string): Promise<void> => void replies.push([id, optionId]),
  } as unknown as SandboxAgent;
  const ask = (id: string, params: Params, signal?: AbortSignal): void =>
    void open.handlers.onPermission(opened(PERMISSION, id, params, signal) as PermissionRequest);
  const answer = (asked: RequestItem): Promise<void> => answerAsked(client, open, "s-1", asked, ALLOW);
  return { client, replies, ask, answer };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("the answer to a card", () => {
  it("reaches the request that it shows, whatever id this page was asked by", async () => {
    const { ask, answer, replies } = page();
    ask("other", running("rm -rf ~"));
    ask("c7-1", running("ls"));
    await answer(logged(PERMISSION, 1, running("ls")));
    expect(replies).toEqual([["c7-1", "yes"]]);
  });

  it("prefers the id that it shows among requests that ask the same", async () => {
    const { ask, answer, replies } = page();
    ask("1", running("ls"));
    ask("2", running("ls"));
    await answer(logged(PERMISSION, "2", running("ls")));
    expect(replies).toEqual([["2", "yes"]]);
  });

  it("waits until this page is asked, too", async () => {
    const { ask, answer, replies } = page();
    const answered = answer(logged(PERMISSION, 1, running("ls")));
    ask("1", running("ls"));
    await answered;
    expect(replies).toEqual([["1", "yes"]]);
  });

  it.each([
    ["another command", running("rm -rf ~")],
    ["more beside its command", running("ls", { toolCall: { toolCallId: "call-1", rawInput: { command: "ls", cwd: "/" } } })],
    ["another difference", running("ls", { toolCall: { toolCallId: "call-1", rawInput: { command: "ls" }, content: [] } })],
    ["another meaning of an option", running("ls", { options: [{ ...OPTIONS[0], kind: "allow_always" }, OPTIONS[1]] })],
    ["another tool call", running("ls", { toolCall: { toolCallId: "call-2", rawInput: { command: "ls" } } })],
    ["another session", running("ls", { sessionId: "s-2" })],
  ])("never reaches a request with %s, even under the same id, and says that it is settled", async (_, later) => {
    const { ask, answer, replies } = page();
    ask("1", later);
    const refused = expect(answer(logged(PERMISSION, 1, running("ls")))).rejects.toThrow(SettledAlready);
    ask("2", later);
    await vi.runAllTimersAsync();
    await refused;
    expect(replies).toEqual([]);
  });

  it("is not sent to a request that was withdrawn", async () => {
    const { client, replies } = page();
    const request = opened(PERMISSION, "1", running("ls"), AbortSignal.abort());
    await expect(give(client, request, ALLOW)).rejects.toThrow("settled already");
    expect(replies).toEqual([]);
  });
});

describe("a question and a form", () => {
  const question = { sessionId: "s-1", prompt: "Delete it?", options: [["yes", "Yes"], ["no", "No"]] };
  const form = { sessionId: "s-1", message: "Your key", requestedSchema: { properties: { key: { type: "string" } } } };

  it.each([
    [QUESTION, question, { ...question, prompt: "Delete all?" }],
    [QUESTION, { ...question, questionId: "q-1" }, { ...question, questionId: "q-1", prompt: "Delete all?" }],
    [FORM, form, { ...form, requestedSchema: { properties: { password: { type: "string" } } } }],
    [FORM, { ...form, mode: "url", url: "https://a.example", requestedSchema: null }, { ...form, mode: "url", url: "https://b.example" }],
  ])("are found by all that they ask (%s)", (method, shown, later) => {
    const asked = logged(method, 1, shown);
    const [same, other] = [opened(method, "c7-1", shown), opened(method, "1", later)];
    expect(requestOf(asked, "s-1", [other, same])).toBe(same);
    expect(requestOf(asked, "s-1", [other])).toBeUndefined();
  });
});

describe("what waits in a session", () => {
  const viewOf = (...pending: RequestItem[]): SessionView => ({ pending }) as unknown as SessionView;

  it("keeps the card of a permission what it was when the agent asks for another", () => {
    const asked = logged(PERMISSION, 1, running("ls"));
    const request = opened(PERMISSION, "2", running("rm -rf ~"));
    const [stale, fresh, ...others] = pendingOf(viewOf(asked), "s-1", [request]);
    expect(stale).toEqual({ asked, request: undefined });
    expect(fresh?.request).toBe(request);
    expect(fresh?.asked.key).not.toBe(asked.key);
    expect(others).toEqual([]);
  });

  it("shows the question that the server made of a permission in its place", () => {
    const asked = logged(PERMISSION, 1, running("ls"));
    const request = opened(QUESTION, "1", { sessionId: "s-1", prompt: "Which color?", options: [["red", "Red"]] });
    const [shown, ...others] = pendingOf(viewOf(asked), "s-1", [request]);
    expect(shown).toMatchObject({ asked: { key: asked.key, kind: "question" }, request });
    expect(others).toEqual([]);
  });

  it("keeps the card of a request whose event comes after it, and of one whose request comes after its event", () => {
    const asked = logged(PERMISSION, 1, running("ls"));
    const request = opened(PERMISSION, "c7-1", running("ls"));
    const known = pendingOf(viewOf(asked), "s-1", [request]);
    for (const before of [pendingOf(viewOf(), "s-1", [request]), pendingOf(viewOf(asked), "s-1", [])]) {
      const first = cardsOf(before, new Map());
      const [card] = first.values();
      expect(cardsOf(known, first).get(asked.key)).toBe(card);
      expect(cardsOf(known, cardsOf(known, first)).get(asked.key)).toBe(card);
    }
    expect(pendingOf(viewOf(), "s-1", [request]).map(isAhead)).toEqual([true]);
    expect(known.map(isAhead)).toEqual([false]);
  });

  it("gives two cards two names", () => {
    const both = pendingOf(viewOf(logged(PERMISSION, 1, running("ls")), logged(PERMISSION, 2, running("pwd"))), "s-1", []);
    expect(new Set(cardsOf(both, new Map()).values()).size).toBe(2);
  });
});
