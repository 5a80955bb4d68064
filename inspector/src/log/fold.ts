/**
 * From the events of a log to a view of the session (pure).
 *
 * A view is all that a fold knows, so that it can go on from any view: `new Fold(view)` and the events after it give
 * what one fold over all events gives. Agents may say anything: what is not understood becomes a notice, and nothing
 * throws.
 */

import type { ContentBlock, PlanEntry, SessionConfigOption, SessionModeState } from "@agentclientprotocol/sdk";
import type { Decision, SessionEnded } from "sandboxagent";

import { ASKED, given } from "./asking.js";
import { type Entry, EventIds, type LogEvent, type RpcId, isGap } from "./event.js";
import { currentName } from "../options/values.js";
import { type Json, listAt, numberAt, objectAt, ours, textAt } from "./reading.js";
import { HEARD, type Place, Transcript } from "./transcript.js";
import type {
  Asked,
  Failure,
  FileWrite,
  Notice,
  OpenCall,
  QueuedPrompt,
  SessionState,
  SessionView,
  Settled,
  ToolCall,
  Turn,
  UserMessage,
} from "./view.js";
import {
  failureFacts,
  joined,
  newTerminal,
  newToolCall,
  sumOf,
  ownTerminal,
  terminalChange,
  tokensOf,
  toolChange,
} from "./working.js";

/** A session of which nothing is known yet. */
export const NOTHING_YET: SessionView = {
  at: 0,
  time: "",
  count: 0,
  state: "idle",
  agent: undefined,
  cwd: undefined,
  title: undefined,
  turns: [],
  queue: [],
  plan: undefined,
  pending: [],
  usage: { context: undefined, tokens: undefined, cost: undefined },
  modes: undefined,
  configOptions: [],
  commands: [],
  metadata: {},
  terminals: {},
  writes: [],
  ended: undefined,
  calls: [],
  texts: {},
};

/** The view after all entries. */
export function fold(entries: Iterable<Entry>, from: SessionView = NOTHING_YET): SessionView {
  const folding = new Fold(from);
  for (const entry of entries) folding.add(entry);
  return folding.view();
}

type Facts = { -readonly [Member in keyof SessionView]: SessionView[Member] };

/** Takes events in, one by one; gives views out, whenever one is wanted. */
export class Fold {
  readonly #facts: Facts;
  readonly #transcript: Transcript;
  #view: SessionView | undefined;

  constructor(from: SessionView = NOTHING_YET) {
    this.#facts = { ...from };
    this.#transcript = new Transcript(from.turns);
    this.#view = from;
  }

  /** The view after everything that was added; the same object as long as nothing is. */
  view(): SessionView {
    if (this.#view) return this.#view;
    const { pending, queue, ended } = this.#facts;
    const runs = this.#transcript.last?.state === "running" || queue.length > 0;
    const state: SessionState = pending.length > 0 ? "waiting" : runs ? "running" : ended ? "ended" : "idle";
    this.#view = { ...this.#facts, state, turns: this.#transcript.give() };
    return this.#view;
  }

  add(entry: Entry): void {
    this.#view = undefined;
    if (isGap(entry)) {
      this.#missing(entry.after, entry.resumesAt);
      return;
    }
    this.#facts.at = entry.id;
    this.#facts.time = entry.at;
    this.#facts.count += 1;
    const envelope = entry.envelope as unknown as Json;
    const method = textAt(envelope, "method");
    if (method === undefined) this.#answer(entry, envelope);
    else if (envelope["id"] !== undefined) this.#request(entry, method, envelope);
    else this.#notification(entry, method, objectAt(envelope, "params"));
  }

  // Requests and their answers

  #request(entry: LogEvent, method: string, envelope: Json): void {
    const params = objectAt(envelope, "params");
    const id = envelope["id"] as RpcId;
    if (entry.direction === "fromAgent") {
      if (this.#asks(entry, method, id, params)) return;
      if (method === "fs/write_text_file") this.#writes(entry, params);
    } else {
      if (method === "session/prompt") this.#prompted(entry, params);
      if (method === "session/new") this.#made(params);
      this.#facts.cwd = textAt(params, "cwd") ?? this.#facts.cwd;
    }
    const call: OpenCall = { event: entry.id, id, fromAgent: entry.direction === "fromAgent", method, params };
    this.#facts.calls = [...this.#facts.calls, call];
  }

  #made(params: Json): void {
    const { agent, title, ...metadata } = ours(params);
    this.#facts.agent = typeof agent === "string" ? agent : this.#facts.agent;
    this.#facts.title = typeof title === "string" ? title : this.#facts.title;
    this.#facts.metadata = metadata;
  }

  #answer(entry: LogEvent, envelope: Json): void {
    const id = envelope["id"] as RpcId;
    const toAgent = entry.direction !== "fromAgent";
    if (toAgent && this.#answered(entry, id, envelope)) return;
    const call = this.#facts.calls.find((each) => each.id === id && each.fromAgent === toAgent && fits(each, envelope));
    if (call === undefined) return;
    this.#facts.calls = this.#facts.calls.filter((each) => each !== call);
    const result = objectAt(envelope, "result");
    const error = envelope["error"] === undefined ? undefined : objectAt(envelope, "error");
    if (call.method === "session/prompt") this.#promptAnswered(entry, call, result, error);
    else if (call.method === "fs/write_text_file") this.#written(entry, call, error === undefined);
    else if (error === undefined) this.#succeeded(entry, call, result);
  }

  #succeeded(entry: LogEvent, call: OpenCall, result: Json): void {
    switch (call.method) {
      case "session/new":
      case "session/load":
      case "session/resume":
      case "session/fork":
        this.#offered(result);
        if (this.#facts.ended) this.#notice(entry, "resumed", "The session was taken up again");
        this.#facts.ended = undefined;
        break;
      case "session/set_config_option":
        this.#offered(result);
        break;
      case "fs/read_text_file":
        if (call.params["line"] == null && call.params["limit"] == null) {
          this.#know(textAt(call.params, "path"), textAt(result, "content"));
        }
        break;
      default:
        if (call.method.startsWith("terminal/")) this.#terminal(entry, call, result);
    }
  }

  #offered(result: Json): void {
    const modes = result["modes"];
    if (typeof modes === "object" && modes !== null) this.#facts.modes = modes as SessionModeState;
    this.#facts.configOptions = listAt<SessionConfigOption>(result, "configOptions") ?? this.#facts.configOptions;
  }

  // Notifications

  #notification(entry: LogEvent, method: string, params: Json): void {
    switch (method) {
      case "session/update":
        this.#update(entry, objectAt(params, "update"));
        break;
      case "_sandboxagent/session/turn":
        if (params["state"] === "started") this.#turnStarted(entry, params);
        else this.#turnEnded(entry, params);
        break;
      case "_sandboxagent/session/decision":
        this.#decided(entry, params as unknown as Decision);
        break;
      case "_sandboxagent/session/metadata_update":
        this.#facts.metadata = objectAt(params, "metadata");
        break;
      case "_sandboxagent/session/ended":
        this.#sessionEnded(entry, params);
        break;
      case "_sandboxagent/agent/unparsed":
        this.#notice(entry, "unparsed", textAt(params, "line") ?? "");
        break;
      case "_sandboxagent/stream/gap":
        this.#missing(numberAt(params, "after") ?? 0, numberAt(params, "resumesAt") ?? 0);
        break;
      case "$/cancel_request":
        if (entry.direction === "fromAgent") this.#touch(params["requestId"] as RpcId, entry.id);
        break;
      default:
    }
  }

  #update(entry: LogEvent, update: Json): void {
    const kind = textAt(update, "sessionUpdate") ?? "";
    // A log may have an agent's replay of what the log itself has already.
    if (REPLAYED.has(kind) && this.#isReplay()) return;
    switch (kind) {
      case "user_message_chunk":
        this.#userSays(entry, update["content"] as ContentBlock);
        break;
      case "agent_message_chunk":
        this.#agentSays(entry, "text", update);
        break;
      case "agent_thought_chunk":
        this.#agentSays(entry, "thought", update);
        break;
      case "tool_call":
      case "tool_call_update":
        this.#tool(entry, update);
        break;
      case "plan":
      case "plan_update":
        this.#plan(entry, listAt<PlanEntry>(kind === "plan" ? update : objectAt(update, "plan"), "entries"));
        break;
      case "plan_removed":
        this.#facts.plan = undefined;
        break;
      case "available_commands_update":
        this.#facts.commands = listAt(update, "availableCommands") ?? this.#facts.commands;
        break;
      case "current_mode_update":
        this.#mode(entry, textAt(update, "currentModeId"));
        break;
      case "config_option_update":
        this.#options(entry, listAt<SessionConfigOption>(update, "configOptions"));
        break;
      case "session_info_update":
        if (update["title"] !== undefined) this.#facts.title = textAt(update, "title");
        break;
      case "usage_update":
        this.#usage(update);
        break;
      case "notice":
        this.#notice(entry, "agent", textAt(update, "message") ?? textAt(update, "text") ?? "");
        break;
      default:
        this.#notice(entry, "unknown", kind);
    }
  }

  #mode(entry: LogEvent, currentModeId: string | undefined): void {
    const { modes } = this.#facts;
    if (currentModeId === undefined) return;
    this.#facts.modes = { ...modes, availableModes: modes?.availableModes ?? [], currentModeId };
    if (modes === undefined || modes.currentModeId === currentModeId) return;
    const name = modes.availableModes.find(({ id }) => id === currentModeId)?.name ?? currentModeId;
    this.#notice(entry, "mode", `Mode: ${name}`);
  }

  #options(entry: LogEvent, options: readonly SessionConfigOption[] | undefined): void {
    if (options === undefined) return;
    const before = new Map(this.#facts.configOptions.map((option) => [option.id, option.currentValue]));
    this.#facts.configOptions = options;
    for (const option of options) {
      const { id, category, name, currentValue } = option;
      // A mode has an update of its own.
      if (category === "mode" || !before.has(id) || before.get(id) === currentValue) continue;
      this.#notice(entry, "option", `${name}: ${currentName(option)}`);
    }
  }

  #usage(update: Json): void {
    const [used, size] = [numberAt(update, "used"), numberAt(update, "size")];
    const cost = objectAt(update, "cost");
    const [amount, currency] = [numberAt(cost, "amount"), textAt(cost, "currency")];
    this.#facts.usage = {
      ...this.#facts.usage,
      ...(used !== undefined && size !== undefined && { context: { used, size } }),
      ...(amount !== undefined && currency !== undefined && { cost: { amount, currency } }),
    };
  }

  // What is said

  #userSays(entry: LogEvent, block: ContentBlock | undefined): void {
    if (block === undefined) return;
    const transcript = this.#transcript;
    const last = transcript.last;
    const place: Place = [transcript.lastIndex, (last?.items.length ?? 0) - 1];
    if (last !== undefined && last.items.at(-1)?.type === "user") {
      // An agent that echoes its prompt says nothing new.
      const echoes = last.state === "running" && last.items.length === 1;
      transcript.change<UserMessage>(place, (item) => (echoes ? {} : { blocks: joined(item.blocks, block) }), entry.id);
      return;
    }
    const item: UserMessage = {
      type: "user",
      key: `user-${entry.id}`,
      at: entry.at,
      events: EventIds.of(entry.id),
      blocks: [block],
      attachments: [],
    };
    if (last?.state === "running") transcript.push(item);
    else transcript.begin(entry, { key: `${HEARD}${entry.id}`, state: "ended", items: [item] });
  }

  #agentSays(entry: LogEvent, type: "text" | "thought", update: Json): void {
    const block = update["content"] as ContentBlock | undefined;
    const { items } = this.#transcript.current(entry);
    const common = { key: `${type}-${entry.id}`, at: entry.at, events: EventIds.of(entry.id) };
    if (block?.type !== "text") {
      if (block) items.push({ type: "content", ...common, block });
      return;
    }
    const messageId = textAt(update, "messageId");
    const last = items.at(-1);
    if (last?.type === type && last.messageId === (messageId ?? last.messageId)) {
      const item = { ...last, text: last.text + block.text, events: last.events.with(entry.id) };
      items[items.length - 1] = item.type === "thought" ? { ...item, until: entry.at } : item;
    } else if (block.text !== "") {
      const item = { ...common, text: block.text, messageId };
      items.push(type === "text" ? { type, ...item } : { type, ...item, until: entry.at });
    }
  }

  #plan(entry: LogEvent, entries: readonly PlanEntry[] | undefined): void {
    if (entries === undefined) return;
    this.#facts.plan = entries;
    const { items } = this.#transcript.current(entry);
    const last = items.at(-1);
    if (last?.type === "plan") {
      items[items.length - 1] = { ...last, entries, events: last.events.with(entry.id) };
    } else {
      items.push({ type: "plan", key: `plan-${entry.id}`, at: entry.at, events: EventIds.of(entry.id), entries });
    }
  }

  // What is done

  #tool(entry: LogEvent, update: Json, askedKey?: string): void {
    const toolCallId = textAt(update, "toolCallId") ?? "";
    const place = this.#transcript.toolCall(toolCallId);
    if (place) {
      this.#transcript.change<ToolCall>(place, (call) => toolChange(call, update, entry.at, askedKey), entry.id);
    } else {
      const call = newToolCall(toolCallId, entry.id, entry.at);
      this.#transcript.push({ ...call, ...toolChange(call, update, entry.at, askedKey) });
    }
    const terminal = ownTerminal(this.#facts.terminals, update, entry.id);
    if (terminal) this.#facts.terminals = { ...this.#facts.terminals, [terminal.terminalId]: terminal };
  }

  #terminal(entry: LogEvent, call: OpenCall, result: Json): void {
    const { terminals } = this.#facts;
    const terminalId = textAt(call.method === "terminal/create" ? result : call.params, "terminalId");
    if (terminalId === undefined) return;
    const known = terminals[terminalId] ?? newTerminal(terminalId, call);
    const events = known.events.with(entry.id);
    this.#facts.terminals = { ...terminals, [terminalId]: { ...known, ...terminalChange(call.method, result), events } };
  }

  #writes(entry: LogEvent, params: Json): void {
    const [path, newText] = [textAt(params, "path"), textAt(params, "content")];
    if (path === undefined || newText === undefined) return;
    const write: FileWrite = {
      path,
      oldText: this.#facts.texts[path],
      newText,
      turnKey: this.#transcript.current(entry).key,
      done: undefined,
      at: entry.at,
      events: EventIds.of(entry.id),
    };
    this.#facts.writes = [...this.#facts.writes, write];
  }

  #written(entry: LogEvent, call: OpenCall, done: boolean): void {
    this.#facts.writes = this.#facts.writes.map((write) =>
      write.events.first === call.event ? { ...write, done, events: write.events.with(entry.id) } : write,
    );
    if (done) this.#know(textAt(call.params, "path"), textAt(call.params, "content"));
  }

  #know(path: string | undefined, text: string | undefined): void {
    if (path === undefined || text === undefined) return;
    this.#facts.texts = { ...this.#facts.texts, [path]: text };
  }

  // What is asked

  #asks(entry: LogEvent, method: string, requestId: RpcId, params: Json): boolean {
    const make = ASKED[method];
    if (make === undefined) return false;
    const key = `asked-${entry.id}`;
    if (method === "session/request_permission") this.#tool(entry, objectAt(params, "toolCall"), key);
    const { key: turnKey } = this.#transcript.current(entry);
    const common = { key, at: entry.at, events: EventIds.of(entry.id), requestId, turnKey, decision: undefined };
    const item: Asked = { type: "asked", ...common, ...make(params) };
    this.#transcript.push(item);
    this.#facts.pending = [...this.#facts.pending, item];
    return true;
  }

  /** An answer on its way to the agent; the server's word about it follows. */
  #answered(entry: LogEvent, requestId: RpcId, envelope: Json): boolean {
    const place = this.#transcript.request(requestId);
    const item = place && this.#transcript.item(place);
    if (place === undefined || item?.type !== "asked") return false;
    if (item.decision) {
      // The same id may have been used again, for something that no person is asked.
      if (this.#facts.calls.some((call) => call.fromAgent && call.id === requestId)) return false;
      this.#touch(requestId, entry.id);
    } else {
      this.#settle(place, { ...given(item, envelope), at: entry.at }, entry.id);
    }
    return true;
  }

  #decided(entry: LogEvent, decision: Decision): void {
    const place = this.#transcript.request(decision.agentRequestId as RpcId);
    const item = place && this.#transcript.item(place);
    if (place === undefined || item?.type !== "asked" || item.kind !== decision.kind) {
      this.#notice(entry, "decision", `${decision.kind}: ${decision.outcome}`);
      return;
    }
    const { outcome, optionId, optionKind, answers, content, reason, by } = decision;
    const said = {
      ...(optionId !== undefined && { optionId }),
      ...(optionKind !== undefined && { optionKind }),
      ...(answers !== undefined && { answers }),
      ...(content !== undefined && { content }),
      ...(reason !== undefined && { reason }),
    };
    this.#settle(place, { outcome, ...said, by, at: entry.at }, entry.id);
  }

  #settle(place: Place, decision: Settled, event?: number): void {
    const { key } = this.#transcript.change<Asked>(place, () => ({ decision }), event);
    this.#facts.pending = this.#facts.pending.filter((each) => each.key !== key);
  }

  /** Notes one more event that has to do with a request. */
  #touch(requestId: RpcId, event: number): void {
    const place = this.#transcript.request(requestId);
    if (place === undefined) return;
    const item = this.#transcript.change<Asked>(place, () => ({}), event);
    this.#facts.pending = this.#facts.pending.map((each) => (each.key === item.key ? item : each));
  }

  /** What was asked before something that ends all asking waits no more, also when its outcome is not in the log. */
  #forgetPending(at: string): void {
    for (const { key } of this.#facts.pending) {
      const place = this.#transcript.find(key);
      if (place) this.#settle(place, { outcome: "unknown", by: undefined, at });
    }
  }

  // Turns

  #prompted(entry: LogEvent, params: Json): void {
    const text = textAt(params, "content");
    const prompt: QueuedPrompt = {
      key: `turn-${entry.id}`,
      event: entry.id,
      at: entry.at,
      promptId: textAt(ours(params), "promptId"),
      blocks: listAt<ContentBlock>(params, "prompt") ?? (text === undefined ? [] : [{ type: "text", text }]),
      attachments: listAt(ours(params), "attachments") ?? [],
    };
    this.#facts.queue = [...this.#facts.queue, prompt];
  }

  #turnStarted(entry: LogEvent, params: Json): void {
    const turnId = textAt(params, "turnId") ?? `turn-${entry.id}`;
    const before = this.#transcript.last;
    if (before?.turnId === turnId) return;
    // Turns run one after another: what is open is open because its end is not in the log.
    if (before?.state === "running") {
      this.#forgetPending(entry.at);
      this.#close(this.#transcript.lastIndex, { state: "ended", endedAt: entry.at });
    }
    this.#facts.ended = undefined;
    const promptId = textAt(params, "promptId");
    this.#transcript.begin(entry, { key: turnId, turnId, promptId, state: "running", ...this.#unqueue(turnId, entry) });
  }

  #turnEnded(entry: LogEvent, params: Json): void {
    const turnId = textAt(params, "turnId");
    if (turnId === undefined) return;
    const promptId = textAt(params, "promptId");
    const index = this.#indexOf(turnId, entry, promptId);
    const error = params["error"] === undefined ? undefined : objectAt(params, "error");
    const stopReason = textAt(params, "stopReason");
    if (error) this.#fail(entry, index, error);
    this.#close(index, {
      state: error ? "failed" : stopReason === "cancelled" ? "cancelled" : "ended",
      stopReason,
      endedAt: entry.at,
      ...(error && { error: { code: numberAt(error, "code") ?? 0, message: textAt(error, "message") ?? "" } }),
    });
    const turn = this.#transcript.draft(index);
    if (!turn.events.has(entry.id)) turn.events = turn.events.with(entry.id);
  }

  #promptAnswered(entry: LogEvent, call: OpenCall, result: Json, error: Json | undefined): void {
    const turnId = `turn-${call.event}`;
    const isQueued = this.#facts.queue.some(({ key }) => key === turnId);
    if (this.#transcript.indexOf(turnId) < 0 && !isQueued) return;
    const index = this.#indexOf(turnId, entry, undefined);
    if (error) this.#fail(entry, index, error);
    // One that never ran; its end may follow.
    if (isQueued) this.#close(index, { state: error ? "failed" : "cancelled", endedAt: entry.at });
    const turn = this.#transcript.draft(index);
    if (!turn.events.has(entry.id)) turn.events = turn.events.with(entry.id);
    const tokens = tokensOf(objectAt(result, "usage"));
    if (tokens === undefined) return;
    turn.tokens = tokens;
    this.#facts.usage = { ...this.#facts.usage, tokens: sumOf(this.#facts.usage.tokens, tokens) };
  }

  /** Where a turn is. One that was cancelled while it waited, or whose start is no longer in the log, is made. */
  #indexOf(turnId: string, entry: LogEvent, promptId: string | undefined): number {
    const index = this.#transcript.indexOf(turnId);
    if (index >= 0) return index;
    const waited = this.#unqueue(turnId, entry);
    this.#transcript.begin(entry, { key: turnId, turnId, promptId, neverBegan: waited.items.length > 0, ...waited });
    return this.#transcript.lastIndex;
  }

  #unqueue(turnId: string, entry: LogEvent): Pick<Turn, "items" | "events"> {
    const prompt = this.#facts.queue.find(({ key }) => key === turnId);
    if (prompt === undefined) return { items: [], events: EventIds.of(entry.id) };
    this.#facts.queue = this.#facts.queue.filter((each) => each !== prompt);
    const { event, at, blocks, attachments } = prompt;
    const item: UserMessage = { type: "user", key: `user-${event}`, at, events: EventIds.of(event), blocks, attachments };
    return { items: [item], events: EventIds.of(event, entry.id) };
  }

  #close(index: number, facts: Partial<Turn>): void {
    const turn = this.#transcript.draft(index);
    Object.assign(turn, facts);
    for (const [place, item] of turn.items.entries()) {
      if (item.type === "tool" && item.endedAt === undefined) turn.items[place] = { ...item, endedAt: facts.endedAt };
    }
  }

  #sessionEnded(entry: LogEvent, params: Json): void {
    const { sessionId: _, ...facts } = params;
    this.#facts.ended = { ...facts, sessionUpdate: "session_ended" } as unknown as SessionEnded;
    this.#forgetPending(entry.at);
    this.#facts.queue = [];
    this.#facts.calls = [];
    const last = this.#transcript.lastIndex;
    const message = textAt(params, "message");
    const crashed = params["reason"] === "error" && params["terminatedBy"] === "agent";
    if (crashed) this.#fail(entry, last, { message: message ?? "The agent's process ended", data: facts });
    if (this.#transcript.turn(last)?.state === "running") this.#close(last, { state: "failed", endedAt: entry.at });
    if (!crashed) this.#notice(entry, "ended", message ?? ENDINGS[String(params["reason"])] ?? "The session has ended");
  }

  // Failures and notices

  /** An error reaches the log in up to three events: the answer, the turn's end, the session's end. */
  #fail(entry: LogEvent, index: number, error: Json): void {
    const message = textAt(error, "message") ?? "";
    const known = failureFacts(error);
    const turn = this.#transcript.turn(index);
    const last = turn?.items.at(-1);
    if (turn && last?.type === "failure" && last.message === message) {
      const data = last.data ?? known.data;
      this.#transcript.change<Failure>([index, turn.items.length - 1], () => ({ ...known, data }), entry.id);
      return;
    }
    const common = { key: `failure-${entry.id}`, at: entry.at, events: EventIds.of(entry.id) };
    const none = { code: undefined, exitCode: undefined, signal: undefined, stderr: undefined, data: undefined };
    const item: Failure = { type: "failure", ...common, message, ...none, ...known };
    if (turn && turn.state !== "outside" && turn.endedAt === undefined) this.#transcript.draft(index).items.push(item);
    else this.#transcript.push(item);
  }

  #notice({ id, at }: LogEvent, about: Notice["about"], text: string): void {
    this.#transcript.push({ type: "notice", key: `notice-${id}-${about}`, at, events: EventIds.of(id), about, text });
  }

  #missing(after: number, resumesAt: number): void {
    const at = this.#facts.time;
    const item = { key: `missing-${after}`, at, events: EventIds.of(), gap: { after, resumesAt } };
    this.#transcript.push({ type: "missing", ...item }, { id: after, at });
  }

  /** Whether an agent tells now what the log has already. */
  #isReplay(): boolean {
    const load = this.#facts.calls.find(({ method, fromAgent }) => method === "session/load" && !fromAgent);
    return load !== undefined && (this.#transcript.firstEvent ?? load.event) < load.event;
  }
}

/** Whether an answer can be one to this request: clients count their requests for themselves, so ids may meet. */
function fits(call: OpenCall, envelope: Json): boolean {
  if (envelope["error"] !== undefined) return true;
  const isTurn = objectAt(envelope, "result")["stopReason"] !== undefined;
  return isTurn === (call.method === "session/prompt");
}

/** Updates by which agents tell the past. */
const REPLAYED: ReadonlySet<string> = new Set([
  "user_message_chunk",
  "agent_message_chunk",
  "agent_thought_chunk",
  "tool_call",
  "tool_call_update",
  "plan",
]);

const ENDINGS: Readonly<Record<string, string>> = {
  closed: "The session was closed",
  deleted: "The session was deleted",
  terminated: "The session was ended for good",
};
