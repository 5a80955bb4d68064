/** Writes logs for tests: events with ids and times that rise. */

import type { Gap, LogEvent } from "sandboxagent";

const SESSION = "s-1";
const ADA = { kind: "client", name: "c1", user: "ada" };
const START = Date.UTC(2026, 10, 16, 9, 0, 0);

/** Writes a log as the server would. */
export class Script {
  readonly entries: (LogEvent | Gap)[] = [];
  #id: number;
  #rpc = 0;
  #asked = 0;

  constructor(first = 1) {
    this.#id = first - 1;
  }

  get lastId(): number {
    return this.#id;
  }

  event(direction: LogEvent["direction"], envelope: Record<string, unknown>): number {
    this.#id += 1;
    const at = new Date(START + this.#id * 10).toISOString();
    const sent = { jsonrpc: "2.0", ...envelope } as LogEvent["envelope"];
    this.entries.push({ id: this.#id, at, direction, envelope: sent });
    return this.#id;
  }

  update(update: Record<string, unknown>): number {
    return this.event("fromAgent", { method: "session/update", params: { sessionId: SESSION, update } });
  }

  server(what: string, params: Record<string, unknown>): number {
    const method = `_sandboxagent/session/${what}`;
    return this.event("fromServer", { method, params: { sessionId: SESSION, ...params } });
  }

  made(): this {
    const id = (this.#rpc += 1);
    const meta = { "sandboxagent.dev": { agent: "mock", title: "A test" } };
    this.event("fromClient", { id, method: "session/new", params: { cwd: "/srv/app", mcpServers: [], _meta: meta } });
    const availableModes = [
      { id: "default", name: "Default" },
      { id: "plan", name: "Plan" },
    ];
    const modes = { currentModeId: "default", availableModes };
    this.event("fromAgent", { id, result: { sessionId: SESSION, modes, configOptions: [] } });
    return this;
  }

  prompt(text: string): { rpc: number; event: number } {
    const rpc = (this.#rpc += 1);
    const _meta = { "sandboxagent.dev": { promptId: `p-${rpc}` } };
    const params = { sessionId: SESSION, prompt: [{ type: "text", text }], _meta };
    return { rpc, event: this.event("fromClient", { id: rpc, method: "session/prompt", params }) };
  }

  started(prompt: { event: number; rpc: number }): void {
    this.server("turn", { turnId: `turn-${prompt.event}`, promptId: `p-${prompt.rpc}`, state: "started" });
  }

  ended(prompt: { event: number; rpc: number }, stopReason = "end_turn", result: Record<string, unknown> = {}): void {
    this.event("fromAgent", { id: prompt.rpc, result: { stopReason, ...result } });
    this.server("turn", { turnId: `turn-${prompt.event}`, promptId: `p-${prompt.rpc}`, state: "ended", stopReason });
  }

  /** A whole turn. */
  turn(text: string, inside: () => void = () => this.say("Done."), stopReason = "end_turn"): this {
    const prompt = this.prompt(text);
    this.started(prompt);
    inside();
    this.ended(prompt, stopReason);
    return this;
  }

  say(text: string): number {
    return this.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
  }

  think(text: string): number {
    return this.update({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text } });
  }

  tool(toolCallId: string, facts: Record<string, unknown> = {}): number {
    const call = { title: "Edit", kind: "edit", status: "pending", ...facts };
    return this.update({ sessionUpdate: "tool_call", toolCallId, ...call });
  }

  toolUpdate(toolCallId: string, facts: Record<string, unknown>): number {
    return this.update({ sessionUpdate: "tool_call_update", toolCallId, ...facts });
  }

  edit(toolCallId: string, path: string, oldText: string | null, newText: string): void {
    const content = [{ type: "diff", path, oldText, newText }];
    this.tool(toolCallId, { title: `Edit ${path}`, content, locations: [{ path }] });
    this.toolUpdate(toolCallId, { status: "completed" });
  }

  permission(toolCallId: string, facts: Record<string, unknown> = {}): number {
    const id = this.#asked;
    this.#asked += 1;
    const options = [
      { optionId: "yes", name: "Allow", kind: "allow_once" },
      { optionId: "no", name: "Reject", kind: "reject_once" },
    ];
    const params = { sessionId: SESSION, toolCall: { toolCallId, title: "Edit", ...facts }, options };
    this.event("fromAgent", { id, method: "session/request_permission", params });
    return id;
  }

  answer(id: number, optionId: string): void {
    this.event("fromClient", { id, result: { outcome: { outcome: "selected", optionId } } });
  }

  decision(agentRequestId: number, optionId: string, by: Record<string, unknown> = ADA): void {
    const allowed = optionId === "yes";
    const optionKind = allowed ? "allow_once" : "reject_once";
    const outcome = allowed || by["kind"] === "client" ? "answered" : "rejected";
    const requestId = `rq_run.${agentRequestId}`;
    this.server("decision", { requestId, agentRequestId, kind: "permission", outcome, optionId, optionKind, by });
  }
}

/** A log with a bit of everything. */
export function varied(): Script {
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
  const write = { path: "/srv/app/b.txt", content: "new" };
  script.event("fromAgent", { id: 79, method: "fs/write_text_file", params: write });
  script.event("fromServer", { id: 79, result: null });
  const first = script.prompt("one");
  const second = script.prompt("two");
  script.started(first);
  script.say("One.");
  script.ended(first, "end_turn", { usage: { totalTokens: 10, inputTokens: 7, outputTokens: 3 } });
  script.ended(second, "cancelled");
  const third = script.prompt("crash");
  script.started(third);
  const data = { exitCode: 3, stderr: { head: ["oh"] } };
  const error = { code: -32603, message: "agent mock exited with code 3", data };
  script.event("fromAgent", { id: third.rpc, error });
  const shown = { code: -32603, message: error.message };
  script.server("turn", { turnId: `turn-${third.event}`, state: "ended", error: shown });
  script.server("ended", { reason: "error", terminatedBy: "agent", message: error.message, exitCode: 3 });
  script.turn("Go on");
  return script;
}
