/**
 * One connection to the server: upstream's app on our stream, and the delivery of its messages.
 *
 * Opened by the first thing that needs it, because `initialize` names an agent.
 */

import {
  type AgentNotificationMethod,
  type AgentNotificationParamsByMethod,
  type AgentRequestMethod,
  type AgentRequestParamsByMethod,
  type AgentRequestResponsesByMethod,
  type ClientCapabilities,
  type ClientConnection,
  type ClientContext,
  type JsonRpcId,
  PROTOCOL_VERSION,
  RequestError as UpstreamError,
  client,
} from "@agentclientprotocol/sdk";

import { Asking, type AskingMethod, type Handlers, KINDS } from "./asking.js";
import { ClientError, ConnectionLost, InvalidCall, RequestError, SandboxAgentError, closed } from "./errors.js";
import { Feed } from "./feed.js";
import { type Http, randomName } from "./http.js";
import type { Logger } from "./log.js";
import { Past } from "./past.js";
import type { SessionInfo } from "./sessions.js";
import type { SocketConstructor } from "./socket.js";
import { EVENT, type Envelope, type Heard, RpcStream, type StreamUser, type Tap } from "./stream.js";
import { ENDED, GAP } from "./updates.js";
import { VERSION } from "./version.js";

/** The key of sandbox-agent's own members in `_meta`. */
export const META = "sandboxagent.dev";

const ATTACH = "_sandboxagent/session/attach";
/** How many of its own prompts a client can tell from those of others when it reads the log. */
const REMEMBERED_PROMPTS = 10_000;
/** Milliseconds between two attempts to attach again. */
const PAUSE = 500;

/** Options of a connection. */
export interface ConnectionSettings {
  readonly agent: string | undefined;
  readonly name: string | undefined;
  readonly user: string | undefined;
  readonly timeout: number;
  readonly buffer: number;
  readonly silence: number;
  readonly respondAsync: boolean;
  readonly webSocket: SocketConstructor | undefined;
  readonly alone: boolean;
  readonly handlers: Handlers;
  readonly log: Logger;
}

/** Whether events of the server reach this client at the moment. */
export interface ConnectionState {
  /** `closed` until the first session or request opens it, and after `close()`. */
  readonly state: "closed" | "live" | "reconnecting";
  /** While it reconnects: what broke, such as a ServerProblem when the server has another token by now. */
  readonly error?: SandboxAgentError;
}

/** The result of `attach`. */
export interface Attached {
  readonly session: SessionInfo;
  readonly position: number;
  /** The open requests. The stream brings them, too. */
  readonly pending: readonly { readonly id: string }[];
}

interface Opened {
  readonly stream: RpcStream;
  readonly rpc: ClientConnection;
}

/** Requests to the server, feeds of its sessions, and requests of agents. */
export class Connection implements StreamUser {
  readonly asking: Asking;
  readonly taps: Set<Tap> = new Set();
  readonly watchers: Set<(state: ConnectionState) => void> = new Set();
  /** The feeds of each session. */
  readonly observers: Map<string, (heard: Heard) => void> = new Map();
  readonly #http: Http;
  readonly #settings: ConnectionSettings;
  readonly #feeds = new Map<string, Set<Feed>>();
  /** The sessions that this connection is attached to; after a renewal, the promise that it is again. */
  readonly #attached = new Map<string, Promise<void>>();
  readonly #prompts = new Set<string>();
  #opening: Promise<ClientContext> | undefined;
  /** The connection, open or being opened. */
  #opened: Opened | undefined;
  #agentName: string | undefined;
  /** By session: callbacks for when something has happened. */
  readonly #alarms = new Map<string, Set<() => void>>();
  /** Why nothing is sent any more. */
  #over: ConnectionLost | undefined;
  /** The newest position of the log that this connection has seen. */
  #position = 0;
  #state: ConnectionState = { state: "closed" };

  constructor(http: Http, settings: ConnectionSettings) {
    this.#http = http;
    this.#settings = settings;
    this.asking = new Asking({ ...settings.handlers }, settings.alone, settings.log);
  }

  /** Whether `initialize` was sent, and with it what this client can show. */
  get isOpen(): boolean {
    return this.#opening !== undefined;
  }

  /** Whether events of the server come in. */
  get state(): ConnectionState {
    return this.#state;
  }

  /** The agent that the connection was opened for. */
  get agent(): string | undefined {
    return this.#agentName;
  }

  /** Which of the server's connections this is by now. */
  get generation(): number {
    return this.#opened?.stream.generation ?? 0;
  }

  /**
   * The result of a request; `agent` is for a connection that is not open yet.
   *
   * @throws RequestError when the method failed, ServerProblem when the server refuses, ConnectionLost.
   */
  async request<M extends AgentRequestMethod>(
    method: M,
    params: AgentRequestParamsByMethod[M],
    options?: { agent?: string | undefined; signal?: AbortSignal },
  ): Promise<AgentRequestResponsesByMethod[M]>;
  async request<T>(
    method: string,
    params?: unknown,
    options?: { agent?: string | undefined; signal?: AbortSignal },
  ): Promise<T>;
  async request(
    method: string,
    params?: unknown,
    options: { agent?: string | undefined; signal?: AbortSignal } = {},
  ): Promise<unknown> {
    const agent = await this.#agent(options.agent);
    const sent = options.signal ? { cancellationSignal: options.signal } : {};
    return await translated(agent.request<unknown, unknown>(method, params ?? {}, sent));
  }

  /** Sends a notification. */
  async notify<M extends AgentNotificationMethod>(method: M, params: AgentNotificationParamsByMethod[M]): Promise<void>;
  async notify(method: string, params?: unknown): Promise<void>;
  async notify(method: string, params?: unknown): Promise<void> {
    const agent = await this.#agent(undefined);
    await translated(agent.notify<unknown>(method, params ?? {}));
  }

  /** Attaches: from now on this client gets the session's events and its agent's requests. */
  async attach(sessionId: string, agent?: string): Promise<Attached> {
    const attached = await this.request<Attached>(ATTACH, { sessionId }, { agent });
    this.#position = Math.max(this.#position, attached.position);
    this.attached(attached.session.sessionId);
    return attached;
  }

  /** The server has attached this connection by itself. */
  attached(sessionId: string): void {
    this.#attached.set(sessionId, Promise.resolve());
  }

  /** Ends the session's feeds: no more events will come. */
  detached(sessionId: string): void {
    this.#attached.delete(sessionId);
    this.observers.delete(sessionId);
    this.asking.ofSession.delete(sessionId);
    for (const feed of this.#feeds.get(sessionId) ?? []) feed.close();
    this.#feeds.delete(sessionId);
    this.#ring(sessionId);
  }

  /** Whether this connection is attached to a session, or will be again. */
  isAttached(sessionId: string): boolean {
    return this.#attached.has(sessionId) && this.#over === undefined;
  }

  /** Calls back whenever something happens in a session; returns a function that ends it. */
  whenever(sessionId: string, call: () => void): () => void {
    const alarms = this.#alarms.get(sessionId) ?? new Set();
    this.#alarms.set(sessionId, alarms.add(call));
    return () => {
      alarms.delete(call);
      if (alarms.size === 0 && this.#alarms.get(sessionId) === alarms) this.#alarms.delete(sessionId);
    };
  }

  /** A name for a prompt, by which its turn is known. */
  newPrompt(): string {
    const name = randomName();
    this.#prompts.add(name);
    if (this.#prompts.size > REMEMBERED_PROMPTS) this.#prompts.delete(this.#prompts.values().next().value as string);
    return name;
  }

  /** The newest known position of the log. */
  get position(): number {
    return this.#position;
  }

  /** A feed of everything that happens in a session from now on, or since a position; `drop` it after reading. */
  feed(sessionId: string, since?: number): Feed {
    const ask = async (method: string, params: Record<string, unknown>): Promise<unknown> => {
      // The log and the stream fit together only while this connection is attached.
      await this.#attached.get(sessionId);
      return await this.request(method, params);
    };
    const past = new Past(ask, sessionId, (prompt) => this.#prompts.has(prompt));
    const after = since ?? this.#position;
    const feed = new Feed(this.#settings.buffer, after, (position) => past.page(position), since !== undefined);
    const feeds = this.#feeds.get(sessionId) ?? new Set();
    this.#feeds.set(sessionId, feeds.add(feed));
    return feed;
  }

  /** Ends the feed: it has no reader any more. */
  drop(sessionId: string, feed: Feed): void {
    feed.drop();
    this.release(sessionId, feed);
  }

  /** Ends it after its last event. */
  release(sessionId: string, feed: Feed): void {
    const feeds = this.#feeds.get(sessionId);
    feeds?.delete(feed);
    if (feeds?.size === 0) this.#feeds.delete(sessionId);
  }

  /** Disconnects from the server; sessions and their turns continue. */
  async close(): Promise<void> {
    this.#over ??= new ConnectionLost("this client is closed");
    for (const feeds of this.#feeds.values()) for (const feed of feeds) feed.drop();
    await this.#end(closed());
  }

  /** The server is gone for good: fail everything that waits for it. */
  async giveUp(failure: ConnectionLost): Promise<void> {
    if (this.#over !== undefined) return;
    this.#over = failure;
    for (const feeds of this.#feeds.values()) for (const feed of feeds) feed.close(failure);
    await this.#end(failure);
  }

  async #end(failure: ConnectionLost): Promise<void> {
    this.#opened?.rpc.close(failure);
    for (const sessionId of this.#alarms.keys()) this.#ring(sessionId);
    await this.#opened?.stream.close();
    this.#change({ state: "closed" });
  }

  // Opening

  async #agent(agent: string | undefined): Promise<ClientContext> {
    if (this.#over !== undefined) throw this.#over;
    this.#opening ??= this.#open(agent ?? this.#settings.agent).catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return await this.#opening;
  }

  async #open(agent: string | undefined): Promise<ClientContext> {
    if (agent === undefined) {
      throw new InvalidCall("no agent is named: give one to connect() or start(), or begin with a session");
    }
    const { name, user } = this.#settings;
    const stream = new RpcStream(this.#http, this, this.#settings);
    const app = client({ name: "sandbox-agent" });
    app.onNotification(
      EVENT,
      (params) => params as Heard,
      ({ params }) => this.#heard(params, stream),
    );
    for (const method of Object.keys(KINDS) as AskingMethod[]) {
      app.onRequest(method as string, asObject, ({ params, requestId, signal }) => {
        this.#ring(String(params["sessionId"]));
        return this.asking.ask(method, requestId ?? null, params, signal);
      });
    }
    app.onRequest("*", ({ method, signal }) => this.asking.stranger(method, signal));
    const rpc = app.connect(stream);
    const opened = { stream, rpc };
    this.#opened = opened;
    try {
      const meta = user === undefined ? { agent } : { agent, user };
      await translated(
        rpc.agent.request("initialize", {
          protocolVersion: PROTOCOL_VERSION,
          clientInfo: { name: name ?? "sandbox-agent-typescript", version: VERSION },
          clientCapabilities: this.#capabilities(),
          _meta: { [META]: meta },
        }),
      );
    } catch (error) {
      this.#opened = undefined;
      rpc.close(error);
      await stream.close();
      this.#change({ state: "closed" });
      throw error;
    }
    this.#agentName = agent;
    // Upstream should never end by itself; if it does, pending calls must not wait forever.
    void rpc.closed.then(() =>
      this.giveUp(new ConnectionLost("the connection was given up", { cause: rpc.signal.reason })),
    );
    return rpc.agent;
  }

  #capabilities(): ClientCapabilities {
    const { onElicitation, onQuestion } = this.asking.handlers;
    const forms: ClientCapabilities = onElicitation ? { elicitation: { form: {}, url: {} } } : {};
    const questions: ClientCapabilities =
      onElicitation && !onQuestion ? {} : { _meta: { [META]: { questions: true } } };
    return { ...forms, ...questions };
  }

  // What comes in, in its order

  #heard(heard: Heard, stream: RpcStream): void {
    try {
      this.#position = Math.max(this.#position, heard.position);
      if (heard.method === GAP) {
        // The log says of each session what it has lost.
        for (const feeds of this.#feeds.values()) for (const feed of feeds) feed.fallBehind();
        for (const sessionId of this.#alarms.keys()) this.#ring(sessionId);
        return;
      }
      const sessionId = String(heard.params["sessionId"]);
      this.observers.get(sessionId)?.(heard);
      for (const feed of this.#feeds.get(sessionId) ?? []) feed.push(heard);
      this.#ring(sessionId);
    } finally {
      stream.dispatched();
    }
  }

  /** The server knows nothing of the old connection: attach again; what happened meanwhile is in the log. */
  renewed(): void {
    this.#position = 0;
    for (const sessionId of this.#attached.keys()) {
      const again = this.#attachAgain(sessionId);
      this.#attached.set(sessionId, again);
      for (const feed of this.#feeds.get(sessionId) ?? []) feed.fallBehind();
    }
  }

  async #attachAgain(sessionId: string): Promise<void> {
    const { generation } = this;
    // Not at once: the caller is in the middle of something.
    await Promise.resolve();
    while (generation === this.generation && this.#over === undefined) {
      try {
        const { position } = await this.request<Attached>(ATTACH, { sessionId });
        this.#position = Math.max(this.#position, position);
        this.#ring(sessionId);
        return;
      } catch (error) {
        if (!(error instanceof ConnectionLost)) {
          this.#lose(sessionId, error);
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
    // There is a newer connection, and another call attaches to that.
    if (this.#over === undefined) await this.#attached.get(sessionId);
  }

  /** The server does not have the session any more. */
  #lose(sessionId: string, error: unknown): void {
    this.#settings.log.warn("sandbox-agent: a session is lost", { sessionId }, error);
    const message = error instanceof Error ? error.message : String(error);
    const params = { sessionId, reason: "error", terminatedBy: "daemon", message };
    for (const feed of this.#feeds.get(sessionId) ?? []) feed.end({ position: 0, method: ENDED, params, size: 0 });
    this.detached(sessionId);
  }

  #ring(sessionId: string): void {
    for (const call of [...(this.#alarms.get(sessionId) ?? [])]) call();
  }

  /** The server has taken an answer to an agent's request, or has not. */
  answered(id: JsonRpcId, failure: unknown): void {
    this.asking.answered(id, failure);
  }

  /** An agent's request needs no answer any more. */
  withdrawn(id: JsonRpcId, outcome: unknown): void {
    this.asking.withdrawn(id, outcome);
  }

  /** Events come now, or no longer. */
  streaming(live: boolean, why: unknown): void {
    const error = why instanceof SandboxAgentError ? { error: why } : {};
    this.#change(live ? { state: "live" } : { state: "reconnecting", ...error });
  }

  #change(state: ConnectionState): void {
    if (state.state === this.#state.state && state.error?.slug === this.#state.error?.slug) return;
    this.#state = state;
    for (const watcher of [...this.watchers]) {
      try {
        watcher(state);
      } catch (error) {
        this.#settings.log.error("sandbox-agent: a callback failed", error);
      }
    }
  }

  /** An envelope was sent or received. */
  readonly tap: Tap = (direction: "sent" | "received", envelope: Envelope, position: number | undefined): void => {
    for (const tap of [...this.taps]) {
      try {
        tap(direction, envelope, position);
      } catch (error) {
        this.#settings.log.error("sandbox-agent: a tap failed", error);
      }
    }
  };
}

/** The result of a call of upstream's. Its error becomes one of the SDK's errors. */
async function translated<T>(call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof SandboxAgentError) throw error;
    if (!(error instanceof UpstreamError)) {
      throw new ClientError(error instanceof Error ? error.message : String(error), { cause: error });
    }
    // The stream puts a reason of its own into it.
    if (error.data instanceof SandboxAgentError) throw error.data;
    throw new RequestError(error.code, error.message, error.data, { cause: error });
  }
}

function asObject(params: unknown): Record<string, unknown> {
  return typeof params === "object" && params !== null ? (params as Record<string, unknown>) : {};
}
