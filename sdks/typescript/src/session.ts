/** A session: one conversation with one agent, as this client has it. */

import type {
  ContentBlock,
  NewSessionResponse,
  SessionConfigOption,
  SessionModeState,
  SetSessionConfigOptionRequest,
} from "@agentclientprotocol/sdk";

import type { Models, Modes } from "./agents.js";
import type { ElicitationHandler, Handlers, PermissionHandler, QuestionHandler } from "./asking.js";
import type { Connection } from "./connection.js";
import { InvalidCall } from "./errors.js";
import type { Feed } from "./feed.js";
import type { Files } from "./files.js";
import { sessionEvent } from "./events.js";
import { Following, followLog, readLog } from "./following.js";
import { Iteration } from "./iteration.js";
import { type LogEvent, isDeleted } from "./past.js";
import type { AgentRequest } from "./requests.js";
import type { SessionInfo, Sessions, Terminated } from "./sessions.js";
import type { Heard } from "./stream.js";
import { type PromptOptions, Turn } from "./turn.js";
import { FINAL, type Gap, type SessionEvent, type SessionItem, TURN, UPDATE, itemOf } from "./updates.js";
import { SessionReducer } from "./view/reducer.js";
import type { SessionView } from "./view/session-view.js";

/** The choices of a session that an agent reports at its beginning. */
export type Offers = Pick<NewSessionResponse, "modes" | "configOptions">;

/** The first facts of a session. */
export interface SessionStart {
  readonly id: string;
  readonly agent: string;
  readonly cwd: string;
  readonly warnings?: readonly string[];
  readonly offers?: Offers;
}

/** A session that this client is attached to. */
export class Session {
  /** Its id. */
  readonly id: string;
  /** Its agent's id. */
  readonly agent: string;
  /** Its directory, on the server's machine. */
  readonly cwd: string;
  /** Requested settings that the agent could not apply. */
  readonly warnings: readonly string[];
  /** Files on the server's machine; a path that is not absolute begins at `cwd`. */
  readonly files: Files;
  readonly #connection: Connection;
  readonly #sessions: Sessions;
  readonly #turns = new Map<string, Turn>();
  #modes: SessionModeState | undefined;
  #configOptions: readonly SessionConfigOption[] = [];

  /** @internal */
  constructor(connection: Connection, sessions: Sessions, files: Files, start: SessionStart) {
    this.id = start.id;
    this.agent = start.agent;
    this.cwd = start.cwd;
    this.warnings = start.warnings ?? [];
    this.files = files;
    this.#connection = connection;
    this.#sessions = sessions;
    this.offered(start.offers ?? {});
    connection.observers.set(this.id, (heard) => this.#observe(heard));
  }

  // Talking

  /** Sends a prompt. The turn begins at once, or when those before it have ended. */
  prompt(prompt: string | ContentBlock | readonly ContentBlock[], options: PromptOptions = {}): Turn {
    const turn = new Turn(this.#connection, this.id, blocksOf(prompt), options);
    this.#turns.set(turn.promptId, turn);
    const forget = (): boolean => this.#turns.delete(turn.promptId);
    turn.then(forget, forget);
    return turn;
  }

  /** Cancels the running turn, even one that another client started, and withdraws queued prompts. */
  async cancel(): Promise<void> {
    await this.#connection.notify("session/cancel", { sessionId: this.id });
  }

  /**
   * The updates of the session from now on, from any client.
   *
   * When the agent crashes or the session is closed, it says so with a `session_ended` and continues: a prompt may
   * resume the session. It ends when the session is terminated or deleted, or when you detach.
   */
  updates(): Iteration<SessionItem> {
    const feed = this.#connection.feed(this.id);
    return new Iteration(this.#items(feed), () => this.#connection.drop(this.id, feed));
  }

  /** The past events of the session, oldest first, between two positions (both exclusive). A gap is an event, too. */
  async *history(range: { after?: number; before?: number } = {}): AsyncGenerator<SessionEvent, void, undefined> {
    for await (const event of readLog(this.#connection, this.id, range.after ?? 0, range.before)) {
      const typed = sessionEvent(event, this.#connection.asking.log);
      if (typed) yield typed;
    }
  }

  /**
   * The past events of the session, then the live ones. `following.view` is the session as an app draws it.
   *
   * Begins after a position, or after a view that you have stored. Continues when the connection breaks, and when the
   * session ends and is resumed; ends when it is terminated or deleted, or when you detach.
   *
   * @throws InvalidCall for both `after` and `view`, and for a view that is none.
   */
  follow(from: { readonly after?: number; readonly view?: SessionView } = {}): Following {
    const { after = 0, view } = from;
    if (view && from.after !== undefined) throw new InvalidCall("give follow() either after or view");
    const reducer = new SessionReducer(view);
    // What was before is not known, and the view says so.
    if (after > 0) reducer.add({ sessionUpdate: "gap", after: 0, resumesAt: after + 1 });
    return new Following(this.#connection, this.id, reducer);
  }

  /**
   * The session's log: every envelope from and to the agent after a position. Use it to store or relay a session.
   *
   * With `before` it ends there. Else it continues with each event as it is written, like `follow`.
   */
  log(range: { readonly after?: number; readonly before?: number } = {}): Iteration<LogEvent | Gap> {
    const { after = 0, before } = range;
    if (before === undefined) return followLog(this.#connection, this.id, after);
    return new Iteration(readLog(this.#connection, this.id, after, before), () => undefined);
  }

  // Choices

  /** The models that its agent offers, and the current one. */
  async models(): Promise<Models> {
    return await this.#connection.request<Models>("_sandboxagent/session/list_models", { sessionId: this.id });
  }

  /** Changes the model. */
  async setModel(modelId: string): Promise<void> {
    await this.#connection.request("session/set_model", { sessionId: this.id, modelId });
  }

  /** The modes that its agent offers, and the current one. */
  async modes(): Promise<Modes> {
    if (this.#modes) return this.#modes;
    const [agent, info] = await Promise.all([this.#sessions.agentModes(this.agent, this.id), this.info()]);
    return { availableModes: agent?.availableModes ?? [], currentModeId: info.mode };
  }

  /** Changes the mode. */
  async setMode(modeId: string): Promise<void> {
    await this.#connection.request("session/set_mode", { sessionId: this.id, modeId });
    if (this.#modes) this.#modes = { ...this.#modes, currentModeId: modeId };
  }

  /** The options that its agent reported last; empty if it reported none. */
  get configOptions(): readonly SessionConfigOption[] {
    return this.#configOptions;
  }

  /** Sets one of its options; gives all of them. */
  async setConfigOption(configId: string, value: string | boolean): Promise<readonly SessionConfigOption[]> {
    const chosen = typeof value === "boolean" ? ({ type: "boolean", value } as const) : { value };
    const params: SetSessionConfigOptionRequest = { sessionId: this.id, configId, ...chosen };
    const { configOptions } = await this.#connection.request("session/set_config_option", params);
    this.offered({ configOptions });
    return this.#configOptions;
  }

  // Answers

  /** Decides on permissions in this session, in place of the client's handler. */
  onPermission(handler: PermissionHandler): void {
    this.#handlers().onPermission = handler;
  }

  /** Answers questions in this session, in place of the client's handler. */
  onQuestion(handler: QuestionHandler): void {
    this.#handlers().onQuestion = handler;
  }

  /** Fills in forms of this session, in place of the client's handler; the client must have one. */
  onElicitation(handler: ElicitationHandler): void {
    if (!this.#connection.asking.handlers.onElicitation) {
      throw new InvalidCall(
        "give onElicitation to connect() or start(): the server must know from the start that this client shows forms",
      );
    }
    this.#handlers().onElicitation = handler;
  }

  /** This client's open requests in this session. */
  requests(): AgentRequest[] {
    return this.#connection.asking.requests().filter(({ sessionId }) => sessionId === this.id);
  }

  /** Open requests in this session, oldest first. Any client that is attached can answer them. */
  async pending(): Promise<AgentRequest[]> {
    return await this.#sessions.pending(this.id);
  }

  // The session itself

  /** The session as the server has it now. */
  async info(): Promise<SessionInfo> {
    return await this.#sessions.get(this.id);
  }

  /** Changes its metadata: null removes a key, a missing key stays. Returns all of it. */
  async setMetadata(metadata: Readonly<Record<string, unknown>>): Promise<Readonly<Record<string, unknown>>> {
    const params = { sessionId: this.id, metadata };
    const changed = await this.#connection.request<{ metadata: Record<string, unknown> }>(
      "_sandboxagent/session/set_metadata",
      params,
    );
    return changed.metadata;
  }

  /** A new session that begins with the conversation of this one. It has its directory unless you give one. */
  async fork(options: { cwd?: string } = {}): Promise<Session> {
    return await this.#sessions.fork(this.id, options);
  }

  /** Closes it at its agent; a prompt may resume it. */
  async close(): Promise<void> {
    await this.#connection.request("session/close", { sessionId: this.id });
  }

  /** Ends it for good; its log stays. */
  async terminate(): Promise<Terminated> {
    return await this.#sessions.terminate(this.id);
  }

  /** Stops following the session, which continues without you. */
  async detach(): Promise<void> {
    await this.#sessions.detach(this.id);
  }

  // Internals

  /** @internal */
  known(): Pick<SessionInfo, "sessionId" | "agent" | "cwd"> {
    return { sessionId: this.id, agent: this.agent, cwd: this.cwd };
  }

  /** @internal */
  offered({ modes, configOptions }: Offers): void {
    if (modes) this.#modes = modes;
    if (configOptions) this.#configOptions = configOptions;
  }

  #handlers(): Handlers {
    const { ofSession } = this.#connection.asking;
    const handlers = ofSession.get(this.id) ?? {};
    ofSession.set(this.id, handlers);
    return handlers;
  }

  #observe(heard: Heard): void {
    if (heard.method === TURN) {
      this.#turns.get(String(heard.params["promptId"]))?.observe(heard);
    } else if (heard.method === UPDATE) {
      const item = itemOf(heard);
      if (item?.sessionUpdate === "config_option_update") this.offered({ configOptions: item.configOptions });
      if (item?.sessionUpdate === "current_mode_update" && this.#modes) {
        this.#modes = { ...this.#modes, currentModeId: item.currentModeId };
      }
    }
  }

  async *#items(feed: Feed): AsyncGenerator<SessionItem, void, undefined> {
    try {
      for (let heard = await feed.next(); heard !== undefined; heard = await feed.next()) {
        const item = itemOf(heard);
        if (item) yield item;
        if (item?.sessionUpdate === "session_ended" && FINAL.has(item.reason)) return;
      }
    } catch (error) {
      if (!isDeleted(error)) throw error;
      // It was deleted while this reader was behind, or the server has lost it.
      const message = "the server no longer has this session";
      yield { sessionUpdate: "session_ended", reason: "deleted", terminatedBy: "daemon", message };
    } finally {
      this.#connection.drop(this.id, feed);
    }
  }
}

function blocksOf(prompt: string | ContentBlock | readonly ContentBlock[]): ContentBlock[] {
  if (typeof prompt === "string") return [{ type: "text", text: prompt }];
  return "type" in prompt ? [prompt] : [...prompt];
}
