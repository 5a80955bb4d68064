/**
 * Makes the view of a session from the events of its log (pure).
 *
 * A view is all that a reducer knows, so it can continue from any view: `new SessionReducer(view)` and the events after
 * it give what one reducer over all events gives. Agents may write anything: an unknown update becomes a notice, and
 * nothing throws.
 */

import type { ContentBlock, PlanEntry, SessionConfigOption } from "@agentclientprotocol/sdk";

import { InvalidCall } from "../errors.js";
import type { LogEvent } from "../past.js";
import type { Gap } from "../updates.js";
import { endText, sessionEnd } from "./ending.js";
import { EventIds } from "./event-ids.js";
import { type Json, isObject, numberAt, objectAt, objectsAt, ours, rpcId, textAt } from "./json.js";
import { terminalsAfter, textsAfter, writesAfter, writesOf } from "./machine.js";
import { answerOf, decisionOf, requestFacts } from "./requests.js";
import {
  EMPTY_VIEW,
  type FailureItem,
  type NoticeItem,
  type OpenCall,
  type QueuedPrompt,
  type RequestDecision,
  type RequestItem,
  type SessionStatus,
  type SessionView,
  type ToolCallItem,
  type TurnView,
  type UserItem,
} from "./session-view.js";
import { attachmentsOf, modeAfter, modeName, modesOf, optionChanges, usageAfter } from "./settings.js";
import { revived } from "./stored.js";
import { type Place, TOLD, Transcript } from "./transcript.js";
import {
  failureFacts,
  isText,
  joined,
  newToolCall,
  ownTerminal,
  sumOf,
  tokensOf,
  toolChange,
} from "./working.js";

type RpcId = string | number;

/** The view after some events. */
export function reduce(events: Iterable<LogEvent | Gap>, view: SessionView = EMPTY_VIEW): SessionView {
  const reducer = new SessionReducer(view);
  for (const event of events) reducer.add(event);
  return reducer.view;
}

type Facts = { -readonly [Member in keyof SessionView]: SessionView[Member] };

/**
 * Takes the events of a log, one by one, and has the view after them.
 *
 * Events up to the view's position are skipped, so a page may be added twice. A log that does not begin with the
 * session's beginning gives a view that begins with a gap.
 */
export class SessionReducer {
  readonly #facts: Facts;
  readonly #transcript: Transcript;
  #view: SessionView | undefined;

  /**
   * @param view To continue from: of this program, or parsed from stored JSON.
   * @throws {InvalidCall} The view is none.
   */
  constructor(view: SessionView = EMPTY_VIEW) {
    if (!isObject(view) || typeof view.position !== "number" || !Array.isArray(view.turns)) {
      throw new InvalidCall("the view to continue from is no SessionView");
    }
    this.#view = revived(view);
    this.#facts = { ...this.#view };
    this.#transcript = new Transcript(this.#view.turns);
  }

  /** The view after everything that was added; the same object until something is added. */
  get view(): SessionView {
    if (this.#view) return this.#view;
    const { pending, queue, ended } = this.#facts;
    const runs = this.#transcript.current?.state === "running" || queue.length > 0;
    const status: SessionStatus = pending.length > 0 ? "waiting" : runs ? "running" : ended ? "ended" : "idle";
    this.#view = { ...this.#facts, status, turns: this.#transcript.give() };
    return this.#view;
  }

  /** Adds the next event, or a gap in the log. */
  add(event: LogEvent | Gap): void {
    const { position } = this.#facts;
    if (!("envelope" in event)) {
      if (event.resumesAt > position + 1) this.#gap(event.after, event.resumesAt);
      return;
    }
    if (event.id <= position) return;
    const envelope = event.envelope as unknown as Json;
    const method = textAt(envelope, "method");
    const isFirst = position === 0 && this.#transcript.current === undefined;
    if (isFirst && !(event.direction === "fromClient" && BEGINNINGS.has(method ?? ""))) this.#gap(0, event.id);
    this.#view = undefined;
    this.#facts.position = event.id;
    this.#facts.time = event.at;
    if (method === undefined) this.#answer(event, envelope);
    else if (envelope["id"] !== undefined) this.#request(event, method, envelope);
    else this.#notification(event, method, objectAt(envelope, "params"));
  }

  // Requests and their answers

  #request(entry: LogEvent, method: string, envelope: Json): void {
    const params = objectAt(envelope, "params");
    const id = rpcId(envelope["id"]);
    if (id === undefined) return;
    if (entry.direction === "fromAgent") {
      if (this.#asks(entry, method, id, params)) return;
      if (method === "fs/write_text_file") {
        const turnKey = this.#transcript.open(entry).key;
        this.#facts.writes = [...this.#facts.writes, ...writesOf(entry, params, turnKey, this.#facts.texts)];
      }
    } else {
      if (method === "session/prompt") this.#prompted(entry, params);
      if (method === "session/new") this.#made(params);
      if (BEGINNINGS.has(method)) this.#facts.cwd = textAt(params, "cwd") ?? this.#facts.cwd;
    }
    const call: OpenCall = { event: entry.id, id, fromAgent: entry.direction === "fromAgent", method, params };
    this.#facts.calls = [...this.#facts.calls, call];
  }

  #made(params: Json): void {
    const { agent, title, env: _, ...metadata } = ours(params);
    this.#facts.agent = typeof agent === "string" ? agent : this.#facts.agent;
    this.#facts.title = typeof title === "string" ? title : this.#facts.title;
    this.#facts.metadata = metadata;
  }

  #answer(entry: LogEvent, envelope: Json): void {
    const id = rpcId(envelope["id"]);
    if (id === undefined) return;
    const toAgent = entry.direction !== "fromAgent";
    if (toAgent && this.#answered(entry, id, envelope)) return;
    const call = this.#facts.calls.find((each) => each.id === id && each.fromAgent === toAgent && fits(each, envelope));
    if (call === undefined) return;
    this.#facts.calls = this.#facts.calls.filter((each) => each !== call);
    const result = objectAt(envelope, "result");
    const error = envelope["error"] === undefined ? undefined : objectAt(envelope, "error");
    if (call.method === "session/prompt") this.#promptAnswered(entry, call, result, error);
    else if (call.method === "fs/write_text_file") {
      this.#facts.writes = writesAfter(this.#facts.writes, call.event, entry.id, error === undefined);
      if (error === undefined) this.#facts.texts = textsAfter(this.#facts.texts, call.params, call.params);
    } else if (error === undefined) this.#succeeded(entry, call, result);
  }

  #succeeded(entry: LogEvent, call: OpenCall, result: Json): void {
    switch (call.method) {
      case "session/new":
      case "session/load":
      case "session/resume":
      case "session/fork":
        this.#offered(result);
        if (this.#facts.ended) this.#notice(entry, "resumed", "The session was resumed");
        this.#facts.ended = undefined;
        break;
      case "session/set_config_option":
        this.#offered(result);
        break;
      case "fs/read_text_file":
        if (call.params["line"] == null && call.params["limit"] == null) {
          this.#facts.texts = textsAfter(this.#facts.texts, call.params, result);
        }
        break;
      default:
        if (call.method.startsWith("terminal/")) {
          this.#facts.terminals = terminalsAfter(this.#facts.terminals, call, result, entry.id);
        }
    }
  }

  #offered(result: Json): void {
    const modes = result["modes"];
    if (isObject(modes)) this.#facts.modes = modesOf(modes);
    this.#facts.configOptions = objectsAt<SessionConfigOption>(result, "configOptions") ?? this.#facts.configOptions;
  }

  // Notifications

  #notification(entry: LogEvent, method: string, params: Json): void {
    if (entry.direction === "fromServer") {
      this.#told(entry, method, params);
    } else if (entry.direction === "fromAgent") {
      if (method === "session/update") this.#update(entry, objectAt(params, "update"));
      if (method === "$/cancel_request") this.#touch(rpcId(params["requestId"]), entry.id);
    }
  }

  /** The server's own notifications. The same names from an agent have no effect. */
  #told(entry: LogEvent, method: string, params: Json): void {
    switch (method) {
      case "session/update":
        this.#update(entry, objectAt(params, "update"));
        break;
      case "_sandboxagent/session/turn":
        if (params["state"] === "started") this.#turnStarted(entry, params);
        else this.#turnEnded(entry, params);
        break;
      case "_sandboxagent/session/decision":
        this.#decided(entry, params);
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
      default:
    }
  }

  #update(entry: LogEvent, update: Json): void {
    const kind = textAt(update, "sessionUpdate") ?? "";
    // A log may have an agent's replay of what the log itself has already.
    if (REPLAYED.has(kind) && this.#isReplay()) return;
    switch (kind) {
      case "user_message_chunk":
        this.#userSays(entry, update["content"]);
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
        this.#plan(entry, objectsAt<PlanEntry>(kind === "plan" ? update : objectAt(update, "plan"), "entries"));
        break;
      case "plan_removed":
        this.#facts.plan = undefined;
        break;
      case "available_commands_update":
        this.#facts.commands = objectsAt(update, "availableCommands") ?? this.#facts.commands;
        break;
      case "current_mode_update":
        this.#mode(entry, textAt(update, "currentModeId"));
        break;
      case "config_option_update":
        this.#options(entry, objectsAt<SessionConfigOption>(update, "configOptions"));
        break;
      case "session_info_update":
        if (update["title"] !== undefined) this.#facts.title = textAt(update, "title");
        break;
      case "usage_update":
        this.#facts.usage = usageAfter(this.#facts.usage, update);
        break;
      case "notice":
        this.#notice(entry, "agent", textAt(update, "message") ?? textAt(update, "text") ?? "");
        break;
      default:
        if (kind !== "") this.#notice(entry, "unknown", kind);
    }
  }

  #mode(entry: LogEvent, modeId: string | undefined): void {
    const { modes } = this.#facts;
    if (modeId === undefined) return;
    this.#facts.modes = modeAfter(modes, modeId);
    if (modes && modes.currentModeId !== modeId) this.#notice(entry, "mode", `Mode: ${modeName(modes, modeId)}`);
  }

  #options(entry: LogEvent, options: readonly SessionConfigOption[] | undefined): void {
    if (options === undefined) return;
    const changes = optionChanges(this.#facts.configOptions, options);
    this.#facts.configOptions = options;
    for (const change of changes) this.#notice(entry, "option", change);
  }

  // Messages

  #userSays(entry: LogEvent, said: unknown): void {
    if (!isObject(said)) return;
    const block = said as unknown as ContentBlock;
    const transcript = this.#transcript;
    const { current } = transcript;
    const place: Place = [transcript.currentIndex, (current?.items.length ?? 0) - 1];
    if (current !== undefined && current.items.at(-1)?.type === "user") {
      // An agent that echoes its prompt says nothing new.
      const echoes = current.state === "running" && current.items.length === 1;
      transcript.change<UserItem>(place, (item) => (echoes ? {} : { blocks: joined(item.blocks, block) }), entry.id);
      return;
    }
    const item: UserItem = {
      type: "user",
      key: `user-${entry.id}`,
      at: entry.at,
      events: EventIds.of(entry.id),
      blocks: [block],
      attachments: [],
    };
    if (current?.state === "running") transcript.push(item);
    else transcript.begin(entry, { key: `${TOLD}${entry.id}`, state: "ended", items: [item] });
  }

  #agentSays(entry: LogEvent, type: "text" | "thought", update: Json): void {
    if (!isObject(update["content"])) return;
    const block = update["content"] as unknown as ContentBlock;
    const { items } = this.#transcript.open(entry);
    const common = { key: `${type}-${entry.id}`, at: entry.at, events: EventIds.of(entry.id) };
    if (!isText(block)) {
      items.push({ type: "content", ...common, block });
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
    const { items } = this.#transcript.open(entry);
    const last = items.at(-1);
    if (last?.type === "plan") {
      items[items.length - 1] = { ...last, entries, events: last.events.with(entry.id) };
    } else {
      items.push({ type: "plan", key: `plan-${entry.id}`, at: entry.at, events: EventIds.of(entry.id), entries });
    }
  }

  // Tool calls, terminals and files

  #tool(entry: LogEvent, update: Json, requestKey?: string): void {
    const toolCallId = textAt(update, "toolCallId") ?? "";
    const place = this.#transcript.toolCall(toolCallId);
    if (place) {
      this.#transcript.change<ToolCallItem>(place, (call) => toolChange(call, update, entry.at, requestKey), entry.id);
    } else {
      const call = newToolCall(toolCallId, entry.id, entry.at);
      this.#transcript.push({ ...call, ...toolChange(call, update, entry.at, requestKey) });
    }
    const terminal = ownTerminal(this.#facts.terminals, update, entry.id);
    if (terminal) this.#facts.terminals = { ...this.#facts.terminals, [terminal.terminalId]: terminal };
  }

  // Requests to people

  #asks(entry: LogEvent, method: string, agentRequestId: RpcId, params: Json): boolean {
    const facts = requestFacts(method, params);
    if (facts === undefined) return false;
    const key = `request-${entry.id}`;
    if (method === "session/request_permission") this.#tool(entry, objectAt(params, "toolCall"), key);
    const { key: turnKey } = this.#transcript.open(entry);
    const place = { key, at: entry.at, events: EventIds.of(entry.id), turnKey, decision: undefined };
    const item: RequestItem = { type: "request", ...place, requestId: entry.requestId, agentRequestId, ...facts };
    this.#transcript.push(item);
    this.#facts.pending = [...this.#facts.pending, item];
    return true;
  }

  /** An answer on its way to the agent; the server's decision follows. */
  #answered(entry: LogEvent, requestId: RpcId, envelope: Json): boolean {
    const place = this.#transcript.request(requestId);
    const item = place && this.#transcript.item(place);
    if (place === undefined || item?.type !== "request") return false;
    if (item.decision) {
      // The same id may have been used again, for something that no person is asked.
      if (this.#facts.calls.some((call) => call.fromAgent && call.id === requestId)) return false;
      this.#touch(requestId, entry.id);
    } else {
      this.#settle(place, { ...answerOf(item, envelope), at: entry.at }, entry.id);
    }
    return true;
  }

  #decided(entry: LogEvent, params: Json): void {
    const id = rpcId(params["agentRequestId"]);
    const place = id === undefined ? undefined : this.#transcript.request(id);
    const item = place && this.#transcript.item(place);
    const decision = decisionOf(params);
    if (place && item?.type === "request" && item.kind === params["kind"]) {
      this.#settle(place, { ...decision, at: entry.at }, entry.id);
    } else {
      this.#notice(entry, "decision", `${textAt(params, "kind") ?? "request"}: ${decision.outcome}`);
    }
  }

  #settle(place: Place, decision: RequestDecision, event?: number): void {
    const { key } = this.#transcript.change<RequestItem>(place, () => ({ decision, requestId: undefined }), event);
    this.#facts.pending = this.#facts.pending.filter((each) => each.key !== key);
  }

  /** Adds one more event to a request. */
  #touch(requestId: RpcId | undefined, event: number): void {
    const place = requestId === undefined ? undefined : this.#transcript.request(requestId);
    if (place === undefined) return;
    const item = this.#transcript.change<RequestItem>(place, () => ({}), event);
    this.#facts.pending = this.#facts.pending.map((each) => (each.key === item.key ? item : each));
  }

  /** Closes all open requests whose outcome is not in the log, at an event that ends them. */
  #forgetPending(at: string): void {
    for (const { key } of this.#facts.pending) {
      const place = this.#transcript.find(key);
      if (place) this.#settle(place, { outcome: "unknown", at });
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
      blocks: objectsAt<ContentBlock>(params, "prompt") ?? (text === undefined ? [] : [{ type: "text", text }]),
      attachments: attachmentsOf(ours(params)),
    };
    this.#facts.queue = [...this.#facts.queue, prompt];
  }

  #turnStarted(entry: LogEvent, params: Json): void {
    const turnId = textAt(params, "turnId") ?? `turn-${entry.id}`;
    const before = this.#transcript.current;
    if (before?.turnId === turnId) return;
    // Turns run one after another: what is open is open because its end is not in the log.
    if (before?.state === "running") {
      this.#forgetPending(entry.at);
      this.#close(this.#transcript.currentIndex, { state: "ended", endedAt: entry.at });
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

  /** Where a turn is. One that was withdrawn while it waited, or whose start is not in the log, is made. */
  #indexOf(turnId: string, entry: LogEvent, promptId: string | undefined): number {
    const index = this.#transcript.indexOf(turnId);
    if (index >= 0) return index;
    const waited = this.#unqueue(turnId, entry);
    const neverBegan = waited.items.length > 0;
    const { current, currentIndex } = this.#transcript;
    // Turns run one after another: everything since a gap belongs to the turn whose start is in the gap.
    if (!neverBegan && current?.state === "outside" && current.items[0]?.type === "gap") {
      Object.assign(this.#transcript.draft(currentIndex), { turnId, promptId, events: EventIds.of(entry.id) });
      return currentIndex;
    }
    if (!neverBegan && current?.state === "running") {
      this.#forgetPending(entry.at);
      this.#close(currentIndex, { state: "ended", endedAt: entry.at });
    }
    this.#transcript.begin(entry, { key: turnId, turnId, promptId, neverBegan, ...waited });
    return this.#transcript.lastIndex;
  }

  #unqueue(turnId: string, entry: LogEvent): Pick<TurnView, "items" | "events"> {
    const prompt = this.#facts.queue.find(({ key }) => key === turnId);
    if (prompt === undefined) return { items: [], events: EventIds.of(entry.id) };
    this.#facts.queue = this.#facts.queue.filter((each) => each !== prompt);
    const { event, at, blocks, attachments } = prompt;
    const item: UserItem = { type: "user", key: `user-${event}`, at, events: EventIds.of(event), blocks, attachments };
    return { items: [item], events: EventIds.of(event, entry.id) };
  }

  #close(index: number, facts: Partial<TurnView>): void {
    const turn = this.#transcript.draft(index);
    Object.assign(turn, facts);
    for (const [place, item] of turn.items.entries()) {
      if (item.type === "tool" && item.endedAt === undefined) turn.items[place] = { ...item, endedAt: facts.endedAt };
    }
  }

  #sessionEnded(entry: LogEvent, params: Json): void {
    const { sessionId: _, ...facts } = params;
    const ended = sessionEnd(params, entry.at);
    this.#facts.ended = ended;
    this.#forgetPending(entry.at);
    this.#facts.queue = [];
    this.#facts.calls = [];
    const { current, currentIndex } = this.#transcript;
    const crashed = ended.reason === "error" && ended.terminatedBy === "agent";
    if (crashed) this.#fail(entry, currentIndex, { message: endText(ended), data: facts });
    if (current?.state === "running") this.#close(currentIndex, { state: "failed", endedAt: entry.at });
    if (!crashed) this.#notice(entry, "ended", endText(ended));
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
      this.#transcript.change<FailureItem>([index, turn.items.length - 1], () => ({ ...known, data }), entry.id);
      return;
    }
    const common = { key: `failure-${entry.id}`, at: entry.at, events: EventIds.of(entry.id) };
    const none = { code: undefined, exitCode: undefined, signal: undefined, stderr: undefined, data: undefined };
    const item: FailureItem = { type: "failure", ...common, message, ...none, ...known };
    if (turn && turn.state !== "outside" && turn.endedAt === undefined) this.#transcript.draft(index).items.push(item);
    else this.#transcript.push(item);
  }

  #notice({ id, at }: LogEvent, about: NoticeItem["about"], text: string): void {
    this.#transcript.push({ type: "notice", key: `notice-${id}-${about}`, at, events: EventIds.of(id), about, text });
  }

  #gap(after: number, resumesAt: number): void {
    const at = this.#facts.time;
    this.#view = undefined;
    this.#facts.position = Math.max(this.#facts.position, resumesAt - 1);
    const { current } = this.#transcript;
    // What follows outside of turns may belong to a turn that started in the gap.
    if (current?.state === "outside") this.#transcript.begin({ id: after, at }, { key: `outside-gap-${after}` });
    const item = { key: `gap-${after}`, at, events: EventIds.of(), after, resumesAt };
    this.#transcript.push({ type: "gap", ...item }, { id: after, at });
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

const NAMES = ["session/new", "session/load", "session/resume", "session/fork"];
/** Requests of clients with which the log of a session begins. */
export const BEGINNINGS: ReadonlySet<string> = new Set(NAMES);
