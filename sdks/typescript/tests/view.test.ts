/** The reducer: from the events of a log to a view of the session. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import {
  EMPTY_VIEW,
  EventIds,
  type Gap,
  InvalidCall,
  type LogEvent,
  SessionReducer,
  type SessionView,
  type ViewItem,
  reduce,
} from "sandboxagent";

import { Script, varied } from "./support/script.js";

type Entry = LogEvent | Gap;

const VIEWS = fileURLToPath(new URL("../../../tests/client/views/", import.meta.url));
const NAMES = readdirSync(VIEWS)
  .filter((name) => name.endsWith(".jsonl"))
  .map((name) => name.slice(0, -".jsonl".length));

function logOf(name: string): Entry[] {
  const lines = readFileSync(`${VIEWS}${name}.jsonl`, "utf8").trimEnd().split("\n");
  return lines.map((line) => JSON.parse(line) as Entry);
}

/** A view as another process would store it. */
function json(view: SessionView): unknown {
  return JSON.parse(JSON.stringify(view));
}

function items(view: SessionView): ViewItem[] {
  return view.turns.flatMap((turn) => turn.items);
}

function types(view: SessionView): string[] {
  return items(view).map(({ type }) => type);
}

describe("the shared logs", () => {
  test("there are several, of every kind", () => {
    assert.ok(NAMES.length >= 6, NAMES.join());
    const all = new Set(NAMES.flatMap((name) => types(reduce(logOf(name)))));
    const known = ["user", "text", "thought", "content", "tool", "plan", "request", "failure", "notice", "gap"];
    assert.deepEqual(known.filter((type) => !all.has(type)), []);
  });

  for (const name of NAMES) {
    test(`${name}: its view is the one that both SDKs expect`, () => {
      const expected: unknown = JSON.parse(readFileSync(`${VIEWS}${name}.view.json`, "utf8"));
      assert.deepEqual(json(reduce(logOf(name))), expected);
    });

    test(`${name}: a stored view continues, wherever the log is cut`, () => {
      const entries = logOf(name);
      const whole = json(reduce(entries));
      for (let cut = 0; cut <= entries.length; cut += 1) {
        const stored = json(reduce(entries.slice(0, cut))) as SessionView;
        assert.deepEqual(json(reduce(entries.slice(cut), stored)), whole, `cut at ${cut}`);
      }
    });

    test(`${name}: a log that is read from its middle begins with a gap, and nothing throws`, () => {
      const entries = logOf(name);
      for (let start = 2; start < entries.length; start += 1) {
        const view = reduce(entries.slice(start));
        const first = items(view)[0];
        const begins = entries[start];
        const isBeginning = begins && JSON.stringify(begins).includes('"method":"session/load"');
        if (!isBeginning) assert.equal(first?.type, "gap", `from ${start}`);
      }
    });
  }
});

describe("a reducer", () => {
  test("it gives the same for a prefix and the rest as for all, wherever the log is cut", () => {
    const { entries } = varied();
    const whole = reduce(entries);
    for (let cut = 0; cut <= entries.length; cut += 1) {
      assert.deepEqual(reduce(entries.slice(cut), reduce(entries.slice(0, cut))), whole, `cut at ${cut}`);
    }
  });

  test("it gives the same however often its view is read", () => {
    const { entries } = varied();
    const reducer = new SessionReducer();
    for (const entry of entries) {
      reducer.add(entry);
      assert.equal(reducer.view, reducer.view);
    }
    assert.deepEqual(reducer.view, reduce(entries));
  });

  test("it never changes a view that it gave out", () => {
    const reducer = new SessionReducer();
    const taken: [SessionView, string][] = [];
    for (const entry of varied().entries) {
      reducer.add(entry);
      taken.push([reducer.view, JSON.stringify(reducer.view)]);
    }
    for (const [view, text] of taken) assert.equal(JSON.stringify(view), text);
  });

  test("a view shares with the one before it what has not changed", () => {
    const script = new Script().made().turn("one").turn("two");
    const reducer = new SessionReducer();
    const count = script.entries.length;
    for (const entry of script.entries) reducer.add(entry);
    const before = reducer.view;
    script.turn("three");
    for (const entry of script.entries.slice(count)) reducer.add(entry);
    assert.equal(reducer.view.turns[0], before.turns[0]);
  });

  test("an event that it has already is skipped", () => {
    const { entries } = varied();
    const twice = [...entries.slice(0, 20), ...entries.slice(10)];
    assert.deepEqual(reduce(twice), reduce(entries));
    assert.deepEqual(reduce(entries, reduce(entries)), reduce(entries));
  });

  test("a view to continue from that is none is refused", () => {
    assert.throws(() => new SessionReducer({} as SessionView), InvalidCall);
    assert.throws(() => new SessionReducer(null as unknown as SessionView), InvalidCall);
  });

  test("pieces become one text, which knows the event of each", () => {
    const script = new Script().made();
    const ids: number[] = [];
    script.turn("Hello", () => ids.push(script.say("Hel"), script.say("lo"), script.say(".")));
    const text = items(reduce(script.entries)).find(({ type }) => type === "text");
    assert.ok(text?.type === "text");
    assert.equal(text.text, "Hello.");
    assert.deepEqual([...text.events], ids);
    assert.ok(text.events.has(ids[1] as number));
    assert.ok(!text.events.has(1));
  });

  test("another message begins another text", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      for (const [messageId, text] of [
        ["a", "1"],
        ["a", "2"],
        ["b", "3"],
      ]) {
        script.update({ sessionUpdate: "agent_message_chunk", messageId, content: { type: "text", text } });
      }
    });
    const texts = items(reduce(script.entries)).flatMap((item) => (item.type === "text" ? [item.text] : []));
    assert.deepEqual(texts, ["12", "3"]);
  });

  test("a tool call has its content, its end and its times", () => {
    const call = items(reduce(varied().entries)).find(({ type }) => type === "tool");
    assert.ok(call?.type === "tool");
    assert.deepEqual([call.toolCallId, call.status, call.kind], ["call-1", "completed", "edit"]);
    assert.deepEqual(call.rawOutput, { ok: true });
    assert.ok(call.endedAt && call.endedAt > call.at);
  });

  test("text after a queued prompt was withdrawn belongs to the turn that runs", () => {
    const script = new Script().made();
    const [first, second] = [script.prompt("one"), script.prompt("two")];
    script.started(first);
    script.say("On");
    script.ended(second, "cancelled");
    script.say("e.");
    const view = reduce(script.entries);
    assert.equal(view.status, "running");
    assert.deepEqual(
      view.turns.map(({ state }) => state),
      ["running", "cancelled"],
    );
    assert.deepEqual(types(view), ["user", "text", "user"]);
  });
});

describe("requests in a view", () => {
  test("one is open until it is answered; then the view says who answered", () => {
    const script = new Script().made();
    script.started(script.prompt("May I?"));
    script.tool("call-1");
    const asked = script.permission("call-1");
    let view = reduce(script.entries);
    assert.equal(view.status, "waiting");
    assert.equal(items(view).at(-1), view.pending[0]);
    script.answer(asked, "no");
    view = reduce(script.entries);
    assert.deepEqual([view.status, view.pending], ["running", []]);
    script.decision(asked, "no");
    const last = items(reduce(script.entries)).at(-1);
    assert.ok(last?.type === "request");
    assert.equal(last.decision?.optionKind, "reject_once");
    assert.equal(last.decision?.by?.["user"], "ada");
  });

  test("the id to answer by is there while the request is open", () => {
    const script = new Script().made();
    script.started(script.prompt("May I?"));
    const asked = script.permission("call-1");
    const event = script.entries.pop() as LogEvent;
    script.entries.push({ ...event, requestId: "rq_run.1" });
    assert.equal(reduce(script.entries).pending[0]?.requestId, "rq_run.1");
    script.decision(asked, "yes");
    const request = items(reduce(script.entries)).find(({ type }) => type === "request");
    assert.ok(request?.type === "request");
    assert.equal(request.requestId, undefined);
    assert.equal(request.agentRequestId, asked);
  });

  test("the server's decision counts, whether it comes before the answer or after it", () => {
    const decisions = [true, false].map((isFirst) => {
      const script = new Script().made();
      script.started(script.prompt("May I?"));
      const asked = script.permission("call-1");
      if (isFirst) script.decision(asked, "yes");
      script.answer(asked, "yes");
      if (!isFirst) script.decision(asked, "yes");
      const request = items(reduce(script.entries)).find(({ type }) => type === "request");
      return request?.type === "request" ? { ...request.decision, at: "" } : undefined;
    });
    assert.deepEqual(decisions[0], decisions[1]);
    assert.equal(decisions[0]?.optionKind, "allow_once");
  });

  test("requests stay apart when an agent that was started again counts from the beginning", () => {
    const script = new Script().made();
    script.turn("first", () => {
      script.permission("call-1");
      script.answer(0, "yes");
      script.decision(0, "yes");
    });
    script.turn("second", () => {
      script.event("fromAgent", { id: 0, method: "fs/read_text_file", params: { path: "/srv/app/x" } });
      script.event("fromServer", { id: 0, result: { content: "x" } });
      const options = [{ optionId: "no", kind: "reject_once" }];
      const params = { toolCall: { toolCallId: "call-2" }, options };
      script.event("fromAgent", { id: 0, method: "session/request_permission", params });
      script.answer(0, "no");
      script.decision(0, "no");
    });
    const view = reduce(script.entries);
    const kinds = items(view).flatMap((item) => (item.type === "request" ? [item.decision?.optionKind] : []));
    assert.deepEqual(kinds, ["allow_once", "reject_once"]);
    assert.deepEqual(view.texts, { "/srv/app/x": "x" });
  });
});

describe("turns in a view", () => {
  test("one failure has everything that three events say of it", () => {
    const failures = items(reduce(varied().entries)).filter(({ type }) => type === "failure");
    assert.equal(failures.length, 1);
    const [failure] = failures;
    assert.ok(failure?.type === "failure");
    assert.deepEqual([failure.exitCode, failure.code, failure.stderr?.head], [3, -32603, ["oh"]]);
    assert.equal(failure.events.count, 3);
  });

  test("prompts wait in their order, and those that never ran are cancelled", () => {
    const script = new Script().made();
    const [first, second] = [script.prompt("one"), script.prompt("two")];
    script.started(first);
    assert.deepEqual(
      reduce(script.entries).queue.map(({ promptId }) => promptId),
      ["p-3"],
    );
    script.ended(first);
    script.ended(second, "cancelled");
    const view = reduce(script.entries);
    assert.deepEqual(view.queue, []);
    assert.deepEqual(
      view.turns.map(({ state }) => state),
      ["ended", "cancelled"],
    );
    assert.equal(view.status, "idle");
  });

  test("tokens are summed over turns; context and cost are those that the agent reported last", () => {
    const { usage } = reduce(varied().entries);
    assert.deepEqual([usage.tokens?.total, usage.tokens?.input, usage.tokens?.output], [10, 7, 3]);
    assert.deepEqual(usage.context, { used: 100, size: 1000 });
    assert.deepEqual(usage.cost, { amount: 0.5, currency: "USD" });
  });

  test("a prompt that its agent echoes is there once", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: "Hello" } });
      script.say("Hi.");
    });
    assert.deepEqual(types(reduce(script.entries)), ["user", "text"]);
  });

  test("history that an agent replays for session/load is there once", () => {
    const script = new Script().made();
    script.turn("Hello", () => script.say("Hi."));
    const before = items(reduce(script.entries)).length;
    script.event("fromClient", { id: 90, method: "session/load", params: { sessionId: "s-1", cwd: "/srv/app" } });
    script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: "Hello" } });
    script.say("Hi.");
    script.event("fromAgent", { id: 90, result: {} });
    assert.equal(items(reduce(script.entries)).length, before);
    script.turn("And now?", () => script.say("More."));
    assert.deepEqual(
      reduce(script.entries)
        .turns.at(-1)
        ?.items.map(({ type }) => type),
      ["user", "text"],
    );
  });

  test("history that the server never saw becomes turns", () => {
    const script = new Script();
    script.event("fromClient", { id: 1, method: "session/load", params: { sessionId: "s-1", cwd: "/srv/app" } });
    for (const text of ["one", "two"]) {
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: text.slice(0, 1) } });
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: text.slice(1) } });
      script.say(`You said ${text}.`);
    }
    script.event("fromAgent", { id: 1, result: {} });
    const view = reduce(script.entries);
    assert.equal(view.turns.length, 2);
    const [user, said] = view.turns[1]?.items ?? [];
    assert.deepEqual(user?.type === "user" && user.blocks, [{ type: "text", text: "two" }]);
    assert.equal(said?.type === "text" && said.text, "You said two.");
  });
});

describe("a log with holes", () => {
  test("a gap is an item, and nothing stays open because its end is in the gap", () => {
    const script = new Script().made();
    script.started(script.prompt("May I?"));
    script.permission("call-1");
    const after = script.lastId;
    const rest = new Script(after + 100);
    rest.turn("Next");
    const gap: Gap = { sessionUpdate: "gap", after, resumesAt: after + 100 };
    const view = reduce([...script.entries, gap, ...rest.entries]);
    const found = items(view).find(({ type }) => type === "gap");
    assert.deepEqual(found?.type === "gap" && [found.after, found.resumesAt], [after, after + 100]);
    assert.deepEqual([view.status, view.pending], ["idle", []]);
    assert.deepEqual(
      view.turns.map(({ state }) => state),
      ["ended", "ended"],
    );
  });

  test("a view that ends with a gap continues after it", () => {
    const script = new Script().made();
    const gap: Gap = { sessionUpdate: "gap", after: script.lastId, resumesAt: script.lastId + 100 };
    const view = reduce([...script.entries, gap]);
    assert.equal(view.position, gap.resumesAt - 1);
    assert.equal(reduce([gap], view), view);
  });

  test("a turn whose start is missing has what is known of it", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      script.say("A");
      script.toolUpdate("call-1", { status: "completed" });
    });
    const view = reduce(script.entries.slice(4));
    const [turn, ...others] = view.turns;
    assert.deepEqual(others, []);
    assert.deepEqual([turn?.state, turn?.turnId, turn?.stopReason], ["ended", "turn-3", "end_turn"]);
    assert.deepEqual(types(view), ["gap", "text", "tool"]);
    assert.equal(view.status, "idle");
  });

  test("an answer and a decision whose request is missing change no other request", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      const asked = script.permission("call-1");
      script.answer(asked, "yes");
      script.decision(asked, "yes");
    });
    const view = reduce(script.entries.slice(5));
    assert.deepEqual(types(view), ["gap", "notice"]);
    assert.deepEqual(view.pending, []);
  });
});

describe("what agents may write", () => {
  const NONSENSE = [null, 7, "text", [], {}, true];
  const METHODS = [
    "session/update",
    "session/request_permission",
    "_sandboxagent/session/request_question",
    "elicitation/create",
    "_sandboxagent/session/turn",
    "_sandboxagent/session/decision",
    "_sandboxagent/session/ended",
    "_sandboxagent/session/metadata_update",
    "_sandboxagent/stream/gap",
    "fs/write_text_file",
    "terminal/create",
    "constructor",
    "__proto__",
  ];
  const KINDS = ["plan", "tool_call", "agent_message_chunk", "user_message_chunk", "current_mode_update"];
  const MORE = ["config_option_update", "available_commands_update", "usage_update", "plan_update", "toString", 3];
  const MEMBERS = ["content", "entries", "toolCallId", "status", "_meta", "currentModeId", "configOptions", "plan"];

  test("nothing throws, whatever the members are", () => {
    const script = new Script().made();
    script.turn("Be strange", () => {
      for (const method of METHODS) {
        for (const params of NONSENSE) {
          for (const direction of ["fromAgent", "fromClient", "fromServer"] as const) {
            script.event(direction, { method, params });
            for (const id of [5, null, {}, [1]]) script.event(direction, { id, method, params });
          }
        }
      }
      for (const sessionUpdate of [...KINDS, ...MORE]) {
        for (const value of NONSENSE) {
          script.update({ sessionUpdate, ...Object.fromEntries(MEMBERS.map((name) => [name, value])) });
          const content = { type: "text", text: value };
          script.update({ sessionUpdate, content, entries: [value], configOptions: [value] });
        }
      }
      for (const result of NONSENSE) script.event("fromAgent", { id: 5, result });
      for (const result of NONSENSE) script.event("fromClient", { id: 5, result });
      script.event("fromAgent", { id: 90, result: { modes: { availableModes: 5 }, configOptions: [null, {}] } });
    });
    const view = reduce(script.entries);
    assert.equal(view.position, Math.max(script.lastId, view.position));
    assert.deepEqual(json(reduce([], json(view) as SessionView)), json(view));
  });

  test("names that every object has are names like others", () => {
    const script = new Script().made();
    for (const name of ["__proto__", "constructor", "toString"]) {
      script.event("fromAgent", { id: name, method: "terminal/output", params: { terminalId: name } });
      script.event("fromServer", { id: name, result: { output: "x" } });
      script.event("fromAgent", { id: name, method: "fs/write_text_file", params: { path: name, content: "new" } });
    }
    const view = reduce(script.entries);
    assert.deepEqual(Object.keys(view.terminals), ["__proto__", "constructor", "toString"]);
    assert.deepEqual(
      view.writes.map(({ oldText }) => oldText),
      [undefined, undefined, undefined],
    );
  });
});

describe("ids of events", () => {
  test("two that continue from one do not disturb each other", () => {
    const one = EventIds.of(1, 2);
    const [left, right] = [one.with(3), one.with(4)];
    assert.deepEqual([[...one], [...left], [...right]], [[1, 2], [1, 2, 3], [1, 2, 4]]);
  });

  test("as JSON they are a range, which grows", () => {
    const stored = EventIds.from(JSON.parse(JSON.stringify(EventIds.of(1, 5, 9))) as EventIds);
    assert.deepEqual(JSON.parse(JSON.stringify(stored.with(12))), { first: 1, last: 12, count: 4 });
    assert.ok(stored.has(9) && !stored.has(10) && stored.with(12).has(12));
    assert.deepEqual(JSON.parse(JSON.stringify(EventIds.from({ first: 0, last: 0, count: 0 }))), {
      first: 0,
      last: 0,
      count: 0,
    });
  });

  test("an empty view has none", () => {
    assert.deepEqual(reduce([]), EMPTY_VIEW);
  });
});
