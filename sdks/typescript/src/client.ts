/** The SDK's entry point: connect to a running server, or start a private one. */

import type {
  AgentNotificationMethod,
  AgentNotificationParamsByMethod,
  AgentRequestMethod,
  AgentRequestParamsByMethod,
  AgentRequestResponsesByMethod,
  ElicitationContentValue,
} from "@agentclientprotocol/sdk";

import { Agents, type Health } from "./agents.js";
import type { Answer, ElicitationHandler, Handlers, PermissionHandler, QuestionHandler } from "./asking.js";
import { Connection, type ConnectionState } from "./connection.js";
import { type EmbeddedOptions, type EmbeddedServer, startServer } from "./embedded.js";
import { isNode } from "./environment.js";
import { InvalidCall } from "./errors.js";
import type { FleetNode } from "./fleet.js";
import { Files } from "./files.js";
import { type Fetch, Http } from "./http.js";
import type { Logger } from "./log.js";
import {
  type AgentRequest,
  ElicitationRequest,
  PermissionRequest,
  QuestionRequest,
  type Rejection,
  type RequestPlace,
} from "./requests.js";
import { Sessions } from "./sessions.js";
import { type SocketConstructor, socketConstructor } from "./socket.js";
import type { Tap } from "./stream.js";

const RECONNECT_TIMEOUT = 30_000;
/** The server gives a sign of life every 15 seconds. */
const SILENCE_TIMEOUT = 60_000;
const BUFFER = 4 * 1024 * 1024;

/** Options that `connect` and `start` share. */
export interface ClientOptions extends Handlers {
  /** The agent of sessions that name none. */
  readonly agent?: string;
  /** The name other clients see on this client's answers. */
  readonly name?: string;
  /** The user's name, shown in the same place. */
  readonly user?: string;
  /** Milliseconds that a request waits for a server that cannot be reached; 30,000 unless given. */
  readonly reconnectTimeout?: number;
  /** Bytes that an iterator keeps for a slow consumer; 4 MiB unless given. The rest is read from the log later. */
  readonly buffer?: number;
  /** Milliseconds without a sign of life after which a socket is given up for another; 60,000 unless given. */
  readonly silenceTimeout?: number;
  /**
   * One WebSocket for everything, or HTTP. In browsers, which have few sockets, `"websocket"` unless you give a
   * `fetch`; elsewhere `"http"`. Where no WebSocket gets through, HTTP does the work.
   */
  readonly transport?: "http" | "websocket";
  /**
   * Over HTTP, whether answers come on the stream, so that none of them holds a socket; unless given, in browsers and
   * with `transport: "websocket"`.
   */
  readonly respondAsync?: boolean;
  /** Used in place of the global `fetch`. */
  readonly fetch?: Fetch;
  /** Used in place of the global `WebSocket`. */
  readonly webSocket?: SocketConstructor;
  /** Where reports go; `console` unless given. */
  readonly logger?: Logger;
}

/** How to connect to a server that runs. */
export interface ConnectOptions extends ClientOptions {
  /** The token the server requires. */
  readonly token?: string;
}

/** How to start a private server. */
export interface StartOptions extends ClientOptions, EmbeddedOptions {}

/** A client of one server: `connect` to a running one, or `start` a private one. */
export class SandboxAgent implements AsyncDisposable {
  /** Where the server is. */
  readonly url: string;
  /** The token the server requires. */
  readonly token: string | undefined;
  /** The agents that the server knows, and installing them. */
  readonly agents: Agents;
  /** All sessions of the server. */
  readonly sessions: Sessions;
  /** Files of the server's machine. */
  readonly files: Files;
  readonly #http: Http;
  readonly #connection: Connection;
  readonly #server: EmbeddedServer | undefined;

  private constructor(http: Http, options: ClientOptions, server: EmbeddedServer | undefined) {
    this.url = http.url;
    this.token = http.token;
    this.#http = http;
    this.#server = server;
    const transport = options.transport ?? (isNode() || options.fetch ? "http" : "websocket");
    this.#connection = new Connection(http, {
      agent: options.agent,
      name: options.name,
      user: options.user,
      timeout: http.timeout,
      silence: options.silenceTimeout ?? SILENCE_TIMEOUT,
      buffer: options.buffer ?? BUFFER,
      respondAsync: options.respondAsync ?? (transport === "websocket" || !isNode()),
      webSocket: transport === "websocket" ? socketConstructor(options.webSocket) : undefined,
      alone: server !== undefined,
      handlers: handlersOf(options),
      log: options.logger ?? console,
    });
    this.agents = new Agents(http);
    this.sessions = new Sessions(http, this.#connection, options.agent, server && process.cwd());
    this.files = new Files(http);
    void server?.ended.then((failure) => this.#connection.giveUp(failure));
  }

  /**
   * A client of a server that runs; its sessions and turns go on when the client is closed.
   *
   * @throws ConnectionLost when there is no server, ServerProblem when it refuses the token.
   */
  static async connect(url: string, options: ConnectOptions = {}): Promise<SandboxAgent> {
    const client = new SandboxAgent(httpOf(url, options.token, options), options, undefined);
    await client.health();
    return client;
  }

  /**
   * Starts a private server on a free port, with its own token; it stops when you close it or your process ends.
   *
   * Its sessions are in a temporary directory, and are deleted when it stops. With `dataDir` they stay there: start
   * with the same directory again, and `sessions.attach` continues them. One server can use a directory at a time.
   *
   * @throws StartFailed with what the server said.
   */
  static async start(options: StartOptions = {}): Promise<SandboxAgent> {
    const server = await startServer(options, options.logger ?? console);
    return new SandboxAgent(httpOf(server.url, server.token, options), options, server);
  }

  /** The server's health, and which agents are installed and running. */
  async health(): Promise<Health> {
    return await this.#http.json<Health>("GET", "/v1/health");
  }

  /** The nodes of a fleet, when the server is a gateway. */
  async nodes(): Promise<FleetNode[]> {
    return (await this.#http.read<{ nodes: FleetNode[] }>("/v1/nodes")).nodes;
  }

  /** Disconnects from the server, whose sessions continue; stops a private server. */
  async close(): Promise<void> {
    this.#http.closed = true;
    await this.#connection.close();
    await this.#server?.close();
  }

  /** Closes the client at the end of a block: `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Whether events of the server reach this client at the moment. */
  get connection(): ConnectionState {
    return this.#connection.state;
  }

  /** Calls back when the connection breaks, and when it is there again. Returns a function that ends it. */
  onConnectionChange(callback: (state: ConnectionState) => void): () => void {
    this.#connection.watchers.add(callback);
    return () => void this.#connection.watchers.delete(callback);
  }

  // Answering agents

  /** Lets this handler decide on permissions. */
  onPermission(handler: PermissionHandler): void {
    this.#connection.asking.handlers.onPermission = handler;
  }

  /** Lets this handler answer agents' questions. */
  onQuestion(handler: QuestionHandler): void {
    this.#connection.asking.handlers.onQuestion = handler;
  }

  /** Lets this handler fill in agents' forms; the server must know of it before the first session. */
  onElicitation(handler: ElicitationHandler): void {
    const { handlers } = this.#connection.asking;
    if (this.#connection.isOpen && !handlers.onElicitation) {
      throw new InvalidCall("onElicitation comes too late: give it to connect() or start(), or before any session");
    }
    handlers.onElicitation = handler;
  }

  /**
   * Answers a permission by its id: one that a handler has left open, or one that was stored.
   *
   * In another process, also give the `sessionId` of the request: the client attaches to its session.
   *
   * @throws AlreadyAnswered when it is settled, with who decided; ServerProblem when it is not open (`nobody-asked`).
   */
  async replyPermission(id: string, optionId: string, where: RequestPlace = {}): Promise<void> {
    await this.#reply(PermissionRequest, id, where, (request) => request.select(optionId));
  }

  /** Rejects a permission by its id, with or without a reason. */
  async rejectPermission(id: string, why: Rejection & RequestPlace = {}): Promise<void> {
    await this.#reply(PermissionRequest, id, why, (request) => request.reject(why));
  }

  /**
   * Answers a question by its id: one answer, or a list of them, for each question.
   *
   * @throws AlreadyAnswered when it is settled; ServerProblem when the answers do not fit (`wrong-answer`).
   */
  async replyQuestion(
    id: string,
    answers: readonly (string | readonly string[])[],
    where: RequestPlace = {},
  ): Promise<void> {
    await this.#reply(QuestionRequest, id, where, (request) => request.answer(...answers));
  }

  /** Declines to answer a question. */
  async rejectQuestion(id: string, why: Rejection & RequestPlace = {}): Promise<void> {
    await this.#reply(QuestionRequest, id, why, (request) => request.reject(why));
  }

  /** Hands in a form by the id of its request. */
  async replyElicitation(
    id: string,
    content?: Record<string, ElicitationContentValue>,
    where: RequestPlace = {},
  ): Promise<void> {
    await this.#reply(ElicitationRequest, id, where, (request) => request.accept(content));
  }

  /** Declines a form. */
  async rejectElicitation(id: string, why: Rejection & RequestPlace = {}): Promise<void> {
    await this.#reply(ElicitationRequest, id, why, (request) => request.decline(why));
  }

  /** This client's open requests, in all sessions it is attached to. */
  requests(): AgentRequest[] {
    return this.#connection.asking.requests();
  }

  /** Open requests from agents, in one session or in all sessions of the server, oldest first. */
  async pending(sessionId?: string): Promise<AgentRequest[]> {
    return await this.sessions.pending(sessionId);
  }

  async #reply<T extends AgentRequest>(
    kind: abstract new (...parameters: never[]) => T,
    id: string,
    { sessionId }: RequestPlace,
    answer: (request: T) => Answer,
  ): Promise<void> {
    const { asking } = this.#connection;
    const known = asking.requests().find((request) => request.id === id)?.sessionId;
    const place = sessionId ?? known;
    try {
      if (!asking.knows(id) || (known !== undefined && place !== known)) await this.sessions.reach(id, place);
      await asking.reply(kind, id, answer);
    } catch (error) {
      throw place === undefined ? error : await this.sessions.explained(error, id, place);
    }
  }

  // The protocol itself

  /**
   * The result of any request of ACP or of the server's own.
   *
   * @throws RequestError when the method failed, ServerProblem when the server refuses, ConnectionLost.
   */
  async request<M extends AgentRequestMethod>(
    method: M,
    params: AgentRequestParamsByMethod[M],
  ): Promise<AgentRequestResponsesByMethod[M]>;
  async request<T = unknown>(method: string, params?: unknown): Promise<T>;
  async request(method: string, params?: unknown): Promise<unknown> {
    return await this.#connection.request<unknown>(method, params);
  }

  /** Sends any notification. */
  async notify<M extends AgentNotificationMethod>(method: M, params: AgentNotificationParamsByMethod[M]): Promise<void>;
  async notify(method: string, params?: unknown): Promise<void>;
  async notify(method: string, params?: unknown): Promise<void> {
    await this.#connection.notify(method, params);
  }

  /** Calls back for every envelope sent and received. The callback must be quick. Returns a function that ends it. */
  tap(callback: Tap): () => void {
    this.#connection.taps.add(callback);
    return () => void this.#connection.taps.delete(callback);
  }
}

function httpOf(url: string, token: string | undefined, options: ClientOptions): Http {
  return new Http(url, token, options.fetch, options.reconnectTimeout ?? RECONNECT_TIMEOUT);
}

function handlersOf({ onPermission, onQuestion, onElicitation }: Handlers): Handlers {
  return {
    ...(onPermission && { onPermission }),
    ...(onQuestion && { onQuestion }),
    ...(onElicitation && { onElicitation }),
  };
}
