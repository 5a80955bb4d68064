/** The sessions of a server: create, find, resume and end them. */

import type { McpServer, NewSessionResponse } from "@agentclientprotocol/sdk";

import { Agents, type Modes } from "./agents.js";
import { decidedBefore, nobodyAsked } from "./asking.js";
import { type Connection, META } from "./connection.js";
import { InvalidCall, ServerProblem } from "./errors.js";
import { requestOf, sessionEvent } from "./events.js";
import { Files } from "./files.js";
import { readLog } from "./following.js";
import type { Http } from "./http.js";
import { type SessionChanges, type WatchSessionsOptions, watchSessions } from "./inventory.js";
import type { Iteration } from "./iteration.js";
import type { Logger } from "./log.js";
import type { AgentRequest } from "./requests.js";
import { type Offers, Session, type SessionStart } from "./session.js";
import type { Decision } from "./updates.js";
import { type Json, objectAt, textAt } from "./view/json.js";

/** The current activity of a session, for lists of many sessions. */
export interface Activity {
  /** The agent's last action. */
  readonly kind: "message" | "thought" | "tool" | null;
  /** The last line of its text, or the title of the tool call; at most 240 characters. */
  readonly said: string;
  /** When the turn that runs was started: UTC, ISO 8601 with milliseconds. */
  readonly turnStartedAt: string | null;
  /** Tokens of all its turns, if its agent counts them. */
  readonly tokens: number | null;
  /** How full its agent's context is, in tokens, as reported last. */
  readonly context: { readonly used: number; readonly size: number } | null;
  /** The cost that its agent reported last. */
  readonly cost: { readonly amount: number; readonly currency: string } | null;
}

/** A session's state at the time of the call. */
export interface SessionInfo {
  /** Its id. */
  readonly sessionId: string;
  /** Its agent's id. */
  readonly agent: string;
  /** Its directory, on the server's machine. */
  readonly cwd: string;
  /** The agent's title, else the requested one. */
  readonly title: string | null;
  /** UTC, ISO 8601 with milliseconds. */
  readonly createdAt: string;
  /** When its last event was written to the log. */
  readonly updatedAt: string;
  /** No process holds it. If it is `resumable`, a prompt resumes it. */
  readonly ended: boolean;
  /** Whether it can be resumed when it has ended. */
  readonly resumable: boolean;
  /** A turn runs now. */
  readonly running: boolean;
  /** How many events its log has. */
  readonly eventCount: number;
  /** How many permissions, questions and forms wait for an answer. */
  readonly pending: number;
  /** The model in use, if the agent reports it. */
  readonly model: string | null;
  /** The current mode, if the agent reports it. */
  readonly mode: string | null;
  /** How and why it ended. */
  readonly terminationInfo: Readonly<Record<string, unknown>> | null;
  /** The facts that clients stored with it. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** The current activity of its agent, and its use of tokens. */
  readonly activity: Activity;
  /** Its alias, which you can use in place of the id. */
  readonly alias?: string;
  /** At a gateway: the node that it belongs to. */
  readonly node?: string;
  /** Facts that an earlier release kept and that are nested too deep to be shown, such as `metadata`. */
  readonly leftOut?: readonly string[];
}

/** Options of a new session. */
export interface CreateSessionOptions {
  /** Its directory, absolute, on the server's machine. With `start()` it defaults to the current directory. */
  readonly cwd?: string;
  /** At a gateway: the node that gets it. Without one, the gateway chooses a node that has the agent. */
  readonly node?: string;
  /** Its title, until the agent gives it another. */
  readonly title?: string;
  /** The initial model; if it is not available, you get a warning. */
  readonly model?: string;
  /** The initial mode; if it is not available, you get a warning. */
  readonly mode?: string;
  /** Initial values of further options, by their ids; you get a warning for each that is not available. */
  readonly configOptions?: Readonly<Record<string, string | boolean>>;
  /** Actions that need no question: `default`, `acceptEdits`, `plan`, `read-only`, `bypassPermissions`, or its own. */
  readonly permissionMode?: string;
  /** Rules that decide on permissions before any client is asked. */
  readonly permissions?: readonly Readonly<Record<string, unknown>>[];
  /** Facts to keep with it. */
  readonly metadata?: Readonly<Record<string, unknown>>;
  /** Variables for this session alone, such as its own keys: it gets a process of its own. The server keeps none. */
  readonly env?: Readonly<Record<string, string>>;
  /** MCP servers that its agent is to use. */
  readonly mcpServers?: readonly McpServer[];
  /** Further directories that its agent may use. */
  readonly additionalDirectories?: readonly string[];
  /** A name that you choose for it. Methods accept it in place of the id. */
  readonly sessionId?: string;
}

/** The end of a session. */
export interface Terminated {
  /** It has ended for good. */
  readonly terminated: true;
  /** Why it ended. */
  readonly reason: string;
  /** Who ended it. */
  readonly terminatedBy: string;
  /** It had ended before. */
  readonly alreadyEnded?: boolean;
}

/** A request from an agent that is still open, as the server lists it. */
interface PendingRequest {
  readonly id: string;
  readonly askedAt: string;
  readonly envelope: Json;
}

const TOO_LATE = new Set(["already-answered", "nobody-asked"]);

type Answered = Offers & { readonly _meta?: Readonly<Record<string, unknown>> | null };

/** The sessions of a server. */
export class Sessions {
  readonly #http: Http;
  readonly #connection: Connection;
  readonly #agent: string | undefined;
  readonly #cwd: string | undefined;
  readonly #held = new Map<string, Session>();

  /** @internal */
  constructor(http: Http, connection: Connection, agent: string | undefined, cwd: string | undefined) {
    this.#http = http;
    this.#connection = connection;
    this.#agent = agent;
    this.#cwd = cwd;
  }

  /** Makes a session with an agent, or with the client's own when none is named. */
  async create(agent: string, options?: CreateSessionOptions): Promise<Session>;
  async create(options?: CreateSessionOptions): Promise<Session>;
  async create(first: string | CreateSessionOptions = {}, second: CreateSessionOptions = {}): Promise<Session> {
    const options = typeof first === "string" ? second : first;
    const agent = typeof first === "string" ? first : this.#agent;
    const cwd = options.cwd ?? this.#cwd;
    if (cwd === undefined) throw new InvalidCall("a session needs cwd: an absolute path on the server's machine");
    const { title, model, mode, configOptions, permissionMode, permissions, env, metadata, sessionId, node } = options;
    const ours = {
      ...metadata,
      agent,
      node,
      title,
      model,
      mode,
      configOptions,
      permissionMode,
      permissions,
      env,
      requestedSessionId: sessionId,
    };
    const made = await this.#connection.request<NewSessionResponse>(
      "session/new",
      {
        cwd,
        mcpServers: options.mcpServers ?? [],
        ...(options.additionalDirectories && { additionalDirectories: options.additionalDirectories }),
        _meta: { [META]: ours },
      },
      { agent },
    );
    return this.#hold({ id: made.sessionId, agent: agent ?? this.#connection.agent ?? "", cwd, ...told(made) });
  }

  /** All sessions, or those of a directory, newest first. */
  async *list(options: { cwd?: string } = {}): AsyncGenerator<SessionInfo, void, undefined> {
    let cursor: string | undefined;
    do {
      const query = { cwd: options.cwd, cursor };
      const page = await this.#http.read<{ sessions: SessionInfo[]; nextCursor?: string }>("/v1/sessions", query);
      yield* page.sessions;
      cursor = page.nextCursor;
    } while (cursor !== undefined);
  }

  /** All sessions, kept up to date: first all of them, then each that changes. You need not be attached. */
  watch(options: WatchSessionsOptions = {}): Iteration<SessionChanges> {
    return watchSessions(this.#http, this.#connection, options);
  }

  /** A session as the server has it, by id or alias. */
  async get(id: string): Promise<SessionInfo> {
    return await this.#http.read<SessionInfo>(`/v1/sessions/${encodeURIComponent(id)}`);
  }

  /** Attaches to a session: from now on you get its events and its agent's requests. */
  async attach(id: string): Promise<Session> {
    const { agent } = await this.get(id);
    const { session } = await this.#connection.attach(id, agent);
    // A session that a process holds is not changed by it; the answer tells its modes and options.
    const params = { sessionId: session.sessionId, cwd: session.cwd };
    const offers = session.ended ? {} : await this.#connection.request("session/resume", params).catch(() => ({}));
    return this.#hold({ id: session.sessionId, agent: session.agent, cwd: session.cwd, ...told(offers as Answered) });
  }

  /** Resumes a session that has ended, with its history, and attaches to it. */
  async resume(id: string): Promise<Session> {
    const { sessionId, agent, cwd } = await this.get(id);
    const answer = await this.#connection.request<Answered>("session/resume", { sessionId, cwd }, { agent });
    return this.#hold({ id: sessionId, agent, cwd, ...told(answer) });
  }

  /** A new session that begins with the conversation of another one. It has the same directory unless you give one. */
  async fork(id: string, options: { cwd?: string } = {}): Promise<Session> {
    const { sessionId, agent, ...info } = this.#held.get(id)?.known() ?? (await this.get(id));
    const cwd = options.cwd ?? info.cwd;
    const { generation } = this.#connection;
    const params = { sessionId, cwd };
    const made = await this.#connection.request<NewSessionResponse>("session/fork", params, { agent });
    // The connection that it was attached to may be gone by now.
    if (generation !== 0 && generation !== this.#connection.generation) await this.#connection.attach(made.sessionId);
    return this.#hold({ id: made.sessionId, agent, cwd, ...told(made) });
  }

  /** Ends a session for good; its log stays. */
  async terminate(id: string): Promise<Terminated> {
    const agent = await this.#agentOf(id);
    return await this.#connection.request<Terminated>("_sandboxagent/session/terminate", { sessionId: id }, { agent });
  }

  /** Deletes a session at its agent, and its log. */
  async delete(id: string): Promise<void> {
    const { sessionId, agent } = await this.get(id);
    await this.#connection.request("session/delete", { sessionId }, { agent });
    this.#release(sessionId);
  }

  /** Return the open requests, of one session or of all, oldest first. */
  async pending(id?: string): Promise<AgentRequest[]> {
    const agent = id === undefined ? undefined : await this.#agentOf(id);
    const params = id === undefined ? {} : { sessionId: id };
    const { pending } = await this.#connection.request<{ pending: PendingRequest[] }>(
      "_sandboxagent/session/pending",
      params,
      { agent },
    );
    return pending.flatMap((each) => pendingRequest(each, this.#connection.asking.log) ?? []);
  }

  /** Attaches to the session of an open request, so that this client can answer it. @internal */
  async reach(id: string, sessionId: string | undefined): Promise<void> {
    const request = (await this.pending(sessionId)).find((each) => each.id === id);
    if (request?.sessionId === undefined) throw nobodyAsked(id);
    const { pending } = await this.#connection.attach(request.sessionId);
    // Another client may have been quicker.
    if (!pending.some((each) => each.id === id)) throw nobodyAsked(id);
    await this.#connection.asking.arrival(id, this.#http.timeout);
  }

  /** A failure of an answer, with who has decided instead, if the session's log says so. @internal */
  async explained(error: unknown, id: string, sessionId: string): Promise<unknown> {
    if (!(error instanceof ServerProblem && TOO_LATE.has(error.slug))) return error;
    try {
      const decision = await this.#decisionOf(id, sessionId);
      return decision ? decidedBefore(id, decision) : error;
    } catch {
      // A session that is gone has no log; what is known of the failure stays true.
      return error;
    }
  }

  async #decisionOf(id: string, sessionId: string): Promise<Decision | undefined> {
    for await (const event of readLog(this.#connection, sessionId, 0)) {
      const item = sessionEvent(event, this.#connection.asking.log)?.item;
      if (item?.sessionUpdate === "decision" && item.requestId === id) return item;
    }
    return undefined;
  }

  /** @internal */
  async detach(id: string): Promise<void> {
    await this.#connection.request("_sandboxagent/session/detach", { sessionId: id });
    this.#release(id);
  }

  /** @internal */
  async agentModes(agent: string, sessionId: string): Promise<Modes | undefined> {
    return (await new Agents(this.#http, { sessionId }).get(agent)).modes;
  }

  /** The agent to name if a connection has to be opened first. */
  async #agentOf(id: string): Promise<string | undefined> {
    return this.#connection.isOpen ? undefined : (await this.get(id)).agent;
  }

  #hold(start: SessionStart): Session {
    this.#connection.attached(start.id);
    const held = this.#held.get(start.id);
    if (held) {
      held.offered(start.offers ?? {});
      return held;
    }
    const session = new Session(this.#connection, this, new Files(this.#http, { sessionId: start.id }), start);
    this.#held.set(start.id, session);
    return session;
  }

  #release(id: string): void {
    this.#held.delete(id);
    this.#connection.detached(id);
  }
}

function told(answer: Answered): Pick<SessionStart, "offers" | "warnings"> {
  const ours = answer._meta?.[META] as { warnings?: string[] } | undefined;
  return { offers: answer, warnings: ours?.warnings ?? [] };
}

function pendingRequest({ id, askedAt, envelope }: PendingRequest, log: Logger): AgentRequest | undefined {
  return requestOf(textAt(envelope, "method") ?? "", id, objectAt(envelope, "params"), askedAt, log);
}
