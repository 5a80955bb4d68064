/** Logs for tests: events by hand, with ids and times that rise. */

import type { Entry, LogEvent } from "./event.js";

const SESSION = "s-1";
const START = Date.UTC(2026, 10, 16, 9, 0, 0);

/** Writes a log as the server would. */
export class Script {
  readonly entries: Entry[] = [];
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
    this.entries.push({ id: this.#id, at, direction, envelope: { jsonrpc: "2.0", ...envelope } as LogEvent["envelope"] });
    return this.#id;
  }

  update(update: Record<string, unknown>): number {
    return this.event("fromAgent", { method: "session/update", params: { sessionId: SESSION, update } });
  }

  server(what: string, params: Record<string, unknown>): number {
    return this.event("fromServer", { method: `_sandboxagent/session/${what}`, params: { sessionId: SESSION, ...params } });
  }

  made(): this {
    const id = (this.#rpc += 1);
    const meta = { "sandboxagent.dev": { agent: "mock", title: "A test" } };
    this.event("fromClient", { id, method: "session/new", params: { cwd: "/srv/app", mcpServers: [], _meta: meta } });
    const modes = { currentModeId: "default", availableModes: [{ id: "default", name: "Default" }, { id: "plan", name: "Plan" }] };
    this.event("fromAgent", { id, result: { sessionId: SESSION, modes, configOptions: [] } });
    return this;
  }

  prompt(text: string): { rpc: number; event: number } {
    const rpc = (this.#rpc += 1);
    const params = { sessionId: SESSION, prompt: [{ type: "text", text }], _meta: { "sandboxagent.dev": { promptId: `p-${rpc}` } } };
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
    return this.update({ sessionUpdate: "tool_call", toolCallId, title: "Edit", kind: "edit", status: "pending", ...facts });
  }

  toolUpdate(toolCallId: string, facts: Record<string, unknown>): number {
    return this.update({ sessionUpdate: "tool_call_update", toolCallId, ...facts });
  }

  edit(toolCallId: string, path: string, oldText: string | null, newText: string): void {
    this.tool(toolCallId, { title: `Edit ${path}`, content: [{ type: "diff", path, oldText, newText }], locations: [{ path }] });
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

  decision(agentRequestId: number, optionId: string, by: Record<string, unknown> = { kind: "client", name: "c1", user: "ada" }): void {
    const allowed = optionId === "yes";
    const optionKind = allowed ? "allow_once" : "reject_once";
    const outcome = allowed || by["kind"] === "client" ? "answered" : "rejected";
    const requestId = `rq_run.${agentRequestId}`;
    this.server("decision", { requestId, agentRequestId, kind: "permission", outcome, optionId, optionKind, by });
  }
}
