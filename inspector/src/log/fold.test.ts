import { describe, expect, it } from "vitest";

import type { Entry } from "./event.js";
import { Script } from "./fixtures.js";
import { Fold, NOTHING_YET, fold } from "./fold.js";
import { SessionLog } from "./session-log.js";
import type { Item, SessionView } from "./view.js";

/** A log with a bit of everything. */
function varied(): Script {
  const script = new Script().made();
  script.turn("Fix it", () => {
    script.think("Let me ");
    script.think("see.");
    script.update({ sessionUpdate: "plan", entries: [{ content: "Look", priority: "high", status: "in_progress" }] });
    script.tool("call-1", { content: [{ type: "diff", path: "/srv/app/a.txt", oldText: "a\n", newText: "b\n" }] });
    const asked = script.permission("call-1");
    script.answer(asked, "yes");
    script.decision(asked, "yes");
    script.toolUpdate("call-1", { status: "in_progress" });
    script.update({ sessionUpdate: "usage_update", used: 100, size: 1000, cost: { amount: 0.5, currency: "USD" } });
    script.toolUpdate("call-1", { status: "completed", rawOutput: { ok: true } });
    for (const word of ["All ", "is ", "well."]) script.say(word);
  });
  script.update({ sessionUpdate: "current_mode_update", currentModeId: "plan" });
  script.event("fromAgent", { id: 77, method: "terminal/create", params: { command: "ls", args: ["-l"] } });
  script.event("fromServer", { id: 77, result: { terminalId: "t-1" } });
  script.event("fromAgent", { id: 78, method: "fs/read_text_file", params: { path: "/srv/app/b.txt" } });
  script.event("fromServer", { id: 78, result: { content: "old" } });
  script.event("fromAgent", { id: 79, method: "fs/write_text_file", params: { path: "/srv/app/b.txt", content: "new" } });
  script.event("fromServer", { id: 79, result: null });
  const first = script.prompt("one");
  const second = script.prompt("two");
  script.started(first);
  script.say("One.");
  script.ended(first, "end_turn", { usage: { totalTokens: 10, inputTokens: 7, outputTokens: 3 } });
  script.ended(second, "cancelled");
  const third = script.prompt("crash");
  script.started(third);
  const error = { code: -32603, message: "agent mock exited with code 3", data: { exitCode: 3, stderr: { head: ["oh"] } } };
  script.event("fromAgent", { id: third.rpc, error });
  script.server("turn", { turnId: `turn-${third.event}`, state: "ended", error: { code: -32603, message: error.message } });
  script.server("ended", { reason: "error", terminatedBy: "agent", message: error.message, exitCode: 3 });
  script.turn("Go on");
  return script;
}

function items(view: SessionView): Item[] {
  return view.turns.flatMap((turn) => turn.items);
}

describe("fold", () => {
  it("gives the same for a prefix and then the rest as for all of it, wherever it is cut", () => {
    const { entries } = varied();
    const whole = fold(entries);
    for (let cut = 0; cut <= entries.length; cut += 1) {
      expect(fold(entries.slice(cut), fold(entries.slice(0, cut))), `cut at ${cut}`).toEqual(whole);
    }
  });

  it("gives the same however often a view is taken on the way", () => {
    const { entries } = varied();
    const folding = new Fold();
    for (const entry of entries) {
      folding.add(entry);
      folding.view();
    }
    expect(folding.view()).toEqual(fold(entries));
  });

  it("never changes a view that it gave out", () => {
    const { entries } = varied();
    const folding = new Fold();
    const taken: [SessionView, string][] = [];
    for (const entry of entries) {
      folding.add(entry);
      taken.push([folding.view(), JSON.stringify(folding.view())]);
    }
    for (const [view, text] of taken) expect(JSON.stringify(view)).toBe(text);
  });

  it("shares what has not changed with the view before", () => {
    const script = new Script().made().turn("one").turn("two");
    const folding = new Fold();
    for (const entry of script.entries) folding.add(entry);
    const before = folding.view();
    expect(folding.view()).toBe(before);
    script.turn("three");
    for (const entry of script.entries.slice(before.count)) folding.add(entry);
    expect(folding.view().turns[0]).toBe(before.turns[0]);
  });

  it("makes one text of its pieces, and remembers the events of each", () => {
    const script = new Script().made();
    const ids: number[] = [];
    script.turn("Hello", () => ids.push(script.say("Hel"), script.say("lo"), script.say(".")));
    const text = items(fold(script.entries)).find(({ type }) => type === "text");
    expect(text).toMatchObject({ text: "Hello." });
    expect([...(text?.events ?? [])]).toEqual(ids);
    expect(text?.events.has(ids[1] as number)).toBe(true);
    expect(text?.events.has(1)).toBe(false);
  });

  it("begins another text for another message", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      for (const [messageId, text] of [["a", "1"], ["a", "2"], ["b", "3"]]) {
        script.update({ sessionUpdate: "agent_message_chunk", messageId, content: { type: "text", text } });
      }
    });
    expect(items(fold(script.entries)).flatMap((item) => (item.type === "text" ? [item.text] : []))).toEqual(["12", "3"]);
  });

  it("follows a tool call to its end, with its content and its times", () => {
    const view = fold(varied().entries);
    const call = items(view).find(({ type }) => type === "tool");
    expect(call).toMatchObject({ toolCallId: "call-1", status: "completed", rawOutput: { ok: true }, kind: "edit" });
    expect(call).toMatchObject({ content: [{ type: "diff", newText: "b\n" }] });
    expect(call?.type === "tool" && call.endedAt && call.endedAt > call.at).toBe(true);
  });

  it("shows a request as waiting until it is answered, and then who answered", () => {
    const script = new Script().made();
    const prompt = script.prompt("May I?");
    script.started(prompt);
    script.tool("call-1");
    const asked = script.permission("call-1");
    let view = fold(script.entries);
    expect(view.state).toBe("waiting");
    expect(view.pending).toHaveLength(1);
    expect(items(view).at(-1)).toBe(view.pending[0]);
    script.answer(asked, "no");
    view = fold(script.entries);
    expect(view).toMatchObject({ state: "running", pending: [] });
    expect(items(view).at(-1)).toMatchObject({ decision: { outcome: "answered", optionKind: "reject_once", by: undefined } });
    script.decision(asked, "no");
    expect(items(fold(script.entries)).at(-1)).toMatchObject({ decision: { optionKind: "reject_once", by: { user: "ada" } } });
  });

  it("takes the server's word for a decision, whether it comes before the answer or after it", () => {
    const before = new Script().made();
    const after = new Script().made();
    for (const script of [before, after]) {
      const prompt = script.prompt("May I?");
      script.started(prompt);
      const asked = script.permission("call-1");
      if (script === before) script.decision(asked, "yes");
      script.answer(asked, "yes");
      if (script === after) script.decision(asked, "yes");
    }
    const decisions = [before, after].map((script) => {
      const asked = items(fold(script.entries)).find(({ type }) => type === "asked");
      return asked?.type === "asked" ? { ...asked.decision, at: "" } : undefined;
    });
    expect(decisions[0]).toEqual(decisions[1]);
    expect(decisions[0]).toMatchObject({ outcome: "answered", optionKind: "allow_once", by: { user: "ada" } });
  });

  it("keeps requests apart when an agent that was started again counts from the beginning", () => {
    const script = new Script().made();
    script.turn("first", () => {
      script.permission("call-1");
      script.answer(0, "yes");
      script.decision(0, "yes");
    });
    script.turn("second", () => {
      script.event("fromAgent", { id: 0, method: "fs/read_text_file", params: { path: "/srv/app/x" } });
      script.event("fromServer", { id: 0, result: { content: "x" } });
      script.event("fromAgent", {
        id: 0,
        method: "session/request_permission",
        params: { toolCall: { toolCallId: "call-2" }, options: [{ optionId: "no", kind: "reject_once" }] },
      });
      script.answer(0, "no");
      script.decision(0, "no");
    });
    const view = fold(script.entries);
    const outcomes = items(view).flatMap((item) => (item.type === "asked" ? [item.decision?.optionKind] : []));
    expect(outcomes).toEqual(["allow_once", "reject_once"]);
    expect(view.texts).toEqual({ "/srv/app/x": "x" });
  });

  it("shows one failure with everything that three events say of it", () => {
    const failures = items(fold(varied().entries)).filter(({ type }) => type === "failure");
    expect(failures).toHaveLength(1);
    expect(failures[0]).toMatchObject({ exitCode: 3, stderr: { head: ["oh"] }, code: -32603 });
    expect([...(failures[0]?.events ?? [])]).toHaveLength(3);
  });

  it("has prompts that wait, in their order, and those that never ran as cancelled", () => {
    const script = new Script().made();
    const [first, second] = [script.prompt("one"), script.prompt("two")];
    script.started(first);
    expect(fold(script.entries).queue.map(({ promptId }) => promptId)).toEqual(["p-3"]);
    script.ended(first);
    script.ended(second, "cancelled");
    const view = fold(script.entries);
    expect(view.queue).toEqual([]);
    expect(view.turns.map(({ state }) => state)).toEqual(["ended", "cancelled"]);
    expect(view.state).toBe("idle");
  });

  it("counts tokens over turns, and takes context and cost as the agent reports them", () => {
    const view = fold(varied().entries);
    expect(view.usage.tokens).toMatchObject({ total: 10, input: 7, output: 3 });
    expect(view.usage.context).toEqual({ used: 100, size: 1000 });
    expect(view.usage.cost).toEqual({ amount: 0.5, currency: "USD" });
  });

  it("does not double a prompt that its agent echoes", () => {
    const script = new Script().made();
    script.turn("Hello", () => {
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: "Hello" } });
      script.say("Hi.");
    });
    expect(items(fold(script.entries)).map(({ type }) => type)).toEqual(["user", "text"]);
  });

  it("does not double history that an agent replays for session/load", () => {
    const script = new Script().made();
    script.turn("Hello", () => script.say("Hi."));
    const before = items(fold(script.entries)).length;
    script.event("fromClient", { id: 90, method: "session/load", params: { sessionId: "s-1", cwd: "/srv/app" } });
    script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: "Hello" } });
    script.say("Hi.");
    script.event("fromAgent", { id: 90, result: {} });
    expect(items(fold(script.entries))).toHaveLength(before);
    script.turn("And now?", () => script.say("More."));
    expect(fold(script.entries).turns.at(-1)?.items.map(({ type }) => type)).toEqual(["user", "text"]);
  });

  it("makes turns of the history of a session that the server never saw", () => {
    const script = new Script();
    script.event("fromClient", { id: 1, method: "session/load", params: { sessionId: "s-1", cwd: "/srv/app" } });
    for (const text of ["one", "two"]) {
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: text.slice(0, 1) } });
      script.update({ sessionUpdate: "user_message_chunk", content: { type: "text", text: text.slice(1) } });
      script.say(`You said ${text}.`);
    }
    script.event("fromAgent", { id: 1, result: {} });
    const view = fold(script.entries);
    expect(view.turns).toHaveLength(2);
    expect(view.turns[1]?.items).toMatchObject([{ blocks: [{ text: "two" }] }, { text: "You said two." }]);
  });

  it("tells a gap, and nothing stays open because its end is in the gap", () => {
    const script = new Script().made();
    script.started(script.prompt("May I?"));
    script.permission("call-1");
    const gap = { sessionUpdate: "gap", after: script.lastId, resumesAt: script.lastId + 100 } as const;
    const rest = new Script(script.lastId + 100);
    rest.turn("Next");
    const view = fold([...script.entries, gap, ...rest.entries] as Entry[]);
    expect(items(view).find(({ type }) => type === "missing")).toMatchObject({ gap: { after: gap.after } });
    expect(view).toMatchObject({ state: "idle", pending: [] });
    expect(view.turns.map(({ state }) => state)).toEqual(["ended", "ended"]);
  });

  it("keeps what the server wrote for the agent, with what was there before", () => {
    const [write] = fold(varied().entries).writes;
    expect(write).toMatchObject({ path: "/srv/app/b.txt", oldText: "old", newText: "new", done: true });
  });

  it("survives whatever an agent says", () => {
    const script = new Script().made();
    const nonsense = [null, 7, "text", [], {}, { sessionUpdate: 3 }, { sessionUpdate: "tool_call" }, { sessionUpdate: "plan", entries: 3 }];
    script.turn("Be strange", () => {
      for (const update of nonsense) script.event("fromAgent", { method: "session/update", params: { update } });
      script.event("fromAgent", { id: 5, method: "session/request_permission" });
      script.event("fromAgent", { id: 6, method: "elicitation/create", params: null });
      script.event("fromServer", { method: "_sandboxagent/session/decision", params: {} });
      script.event("fromClient", { id: "unheard-of", result: 3 });
      script.update({ sessionUpdate: "agent_message_chunk" });
      script.update({ sessionUpdate: "user_message_chunk", content: null });
    });
    expect(fold(script.entries).count).toBe(script.entries.length);
  });
});

describe("a session's log", () => {
  it("has at every moment what was true then, in whatever order moments are looked at", () => {
    const script = varied();
    for (let turn = 0; turn < 60; turn += 1) script.turn(`again ${turn}`, () => [1, 2, 3, 4, 5].map((n) => script.say(`${n} `)));
    const { entries } = script;
    const log = SessionLog.of("s-1", entries);
    const counts = [...entries.keys()].map((index) => (index * 397) % entries.length);
    for (const count of counts.slice(0, 40)) {
      const entry = entries[count] as { id: number };
      expect(log.view(entry.id), `at ${entry.id}`).toEqual(fold(entries.slice(0, count + 1)));
    }
    expect(log.view(script.lastId)).toBe(log.view());
    expect(log.view(0)).toBe(NOTHING_YET);
  });

  it("passes over what it has already, as after a reconnect", () => {
    const { entries } = varied();
    const log = new SessionLog("s-1", (call) => call());
    for (const entry of [...entries.slice(0, 20), ...entries.slice(10)]) log.append(entry);
    expect(log.length).toBe(entries.length);
    expect(log.view()).toEqual(fold(entries));
  });

  it("tells its listeners once per frame, however many events come", () => {
    const frames: (() => void)[] = [];
    const log = new SessionLog("s-1", (call) => void frames.push(call));
    let heard = 0;
    const stop = log.subscribe(() => (heard += 1));
    const { entries } = varied();
    for (const entry of entries) log.append(entry);
    expect(frames).toHaveLength(1);
    expect(log.shown().length).toBe(0);
    frames.pop()?.();
    expect(heard).toBe(1);
    expect(log.shown().length).toBe(entries.length);
    const { view } = log.shown();
    expect(log.shown().view).toBe(view);
    stop();
    log.reading = { state: "live" };
    frames.pop()?.();
    expect(heard).toBe(1);
  });
});
