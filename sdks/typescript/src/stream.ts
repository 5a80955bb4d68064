/**
 * The `Stream` that upstream's connection runs on: envelopes over `/v1/rpc`.
 *
 * Only this module makes or reads JSON-RPC envelopes. Upstream has ids, dispatch, timeouts and types.
 * This module sends envelopes over HTTP in the order of the contract, and recovers when the connection is
 * cut. An answer is passed on after all earlier events of the server.
 */

import type { AnyMessage, AnyNotification, AnyRequest, AnyResponse, JsonRpcId, Stream } from "@agentclientprotocol/sdk";

import { ClientError, ConnectionLost, ServerProblem } from "./errors.js";
import { type Http, randomName } from "./http.js";
import { Link, type LinkOptions, type LinkUser, type Post, type Reply } from "./link.js";

/** An envelope as it goes over the wire. */
export type Envelope = AnyMessage;

/** Sees every envelope; `position` is the event's place in the log, of those that came on the stream. */
export type Tap = (direction: "sent" | "received", envelope: Envelope, position: number | undefined) => void;

/** A notification of the server's, and its place in the log. */
export interface Heard {
  readonly position: number;
  readonly method: string;
  readonly params: Readonly<Record<string, unknown>>;
  /** About how many bytes it has. */
  readonly size: number;
}

/**
 * What upstream knows the server's notifications as; the params are a `Heard`.
 *
 * Not by their own methods, for two reasons. Upstream's app checks each `session/update` against the schema of one
 * version, and drops what does not fit; what an agent says is the caller's to judge. And handlers of several methods
 * would not be called in the order of the events.
 */
export const EVENT = "_sandboxagent/sdk/event";

/** Requests that may be made any number of times: they need no key. */
const READS: ReadonlySet<string> = new Set([
  "session/list",
  "_sandboxagent/session/attach",
  "_sandboxagent/session/detach",
  "_sandboxagent/session/events",
  "_sandboxagent/session/get",
  "_sandboxagent/session/list",
  "_sandboxagent/session/list_models",
  "_sandboxagent/session/pending",
  "_sandboxagent/agent/list",
  "_sandboxagent/fs/read_file",
  "_sandboxagent/fs/entries",
  "_sandboxagent/fs/stat",
]);

/** Requests that attach the connection: another connection must not be given the outcome on the first. */
const ATTACHING: ReadonlySet<string> = new Set(["session/load", "session/resume"]);

/** An agent's request's own id, of what upstream knows it by. */
export function idOf(rpcId: JsonRpcId): string {
  return String(rpcId).replace(/^\d+\//, "");
}

/** Refusals of an answer after which the agent's request is still open. */
export const STILL_OPEN: ReadonlySet<string> = new Set(["wrong-answer", "log-unavailable", "node-unreachable"]);

/** The user of the stream besides upstream. None of these may throw. */
export interface StreamUser {
  /** The server knows nothing of the old connection; called before anything is sent on the new one. */
  renewed(): void;
  /** The server has taken an answer to the agent's request with this id; or it has not, and `failure` says why. */
  answered(id: JsonRpcId, failure: unknown): void;
  /** The agent's request needs no answer any more. */
  withdrawn(id: JsonRpcId, outcome: unknown): void;
  /** Events come now; or no longer, and `why` says what broke. */
  streaming(live: boolean, why: unknown): void;
  readonly tap: Tap;
}

/** Options of the stream. */
export interface StreamOptions extends LinkOptions {
  /** Have answers on the stream, so that no request holds a socket. */
  readonly respondAsync: boolean;
}

/** A request of ours that has no answer yet. */
interface Waiting {
  readonly post: Post;
  readonly answered: AbortController;
  /** The server has it; the answer comes on the stream. */
  accepted: boolean;
}

/** An agent's request that is open. */
interface Asked {
  /** As upstream knows it. */
  readonly envelope: AnyRequest;
  /** Its id on its connection, and which one that is. */
  readonly id: JsonRpcId;
  readonly generation: number;
  withdrawn: boolean;
}

/** The stream, and the connection behind it. */
export class RpcStream implements Stream, LinkUser {
  readonly readable: ReadableStream<AnyMessage>;
  readonly writable: WritableStream<AnyMessage>;
  readonly #link: Link;
  readonly #user: StreamUser;
  readonly #options: StreamOptions;
  #incoming!: ReadableStreamDefaultController<AnyMessage>;
  #closed = false;
  readonly #waiting = new Map<JsonRpcId, Waiting>();
  readonly #asked = new Map<JsonRpcId, Asked>();
  /** The last event of this connection's stream. */
  #entered = 0;
  /** How many notifications were handed to upstream, and how many of them have reached their handler. */
  #handed = 0;
  #dispatched = 0;
  readonly #conditions = new Set<() => void>();
  /** Callbacks for acknowledgements of the server, by their ids. */
  readonly #acknowledgements = new Map<JsonRpcId, (envelope: AnyResponse) => void>();

  constructor(http: Http, user: StreamUser, options: StreamOptions) {
    this.#user = user;
    this.#options = options;
    this.#link = new Link(http, this, options);
    this.readable = new ReadableStream<AnyMessage>({
      start: (controller) => {
        this.#incoming = controller;
      },
      cancel: () => {
        this.#closed = true;
      },
    });
    // Upstream writes one envelope after the other: a prompt that is waited for here would hold up its own cancel.
    this.writable = new WritableStream<AnyMessage>({ write: (envelope) => this.#send(envelope) });
  }

  /** Which connection this is; another number means that the server had forgotten the one before. */
  get generation(): number {
    return this.#link.generation;
  }

  /** A notification has reached its handler. */
  dispatched(): void {
    this.#dispatched += 1;
    this.#look();
  }

  /** Ends everything. The code that opened upstream closes it. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#look();
    await this.#link.close();
  }

  // Out

  #send(envelope: AnyMessage): void {
    // Upstream sends answers even to requests that no longer need one.
    if (!("method" in envelope) && !this.#asked.has(envelope.id)) return;
    this.#user.tap("sent", envelope, undefined);
    if (!("method" in envelope)) void this.#answer(envelope);
    else if (!("id" in envelope)) void this.#notify(envelope);
    else if (envelope.method === "initialize") void this.#open(envelope);
    else void this.#request(envelope);
  }

  async #open(envelope: AnyRequest): Promise<void> {
    const waiting = { post: { body: "", elsewhere: false }, answered: new AbortController(), accepted: false };
    this.#waiting.set(envelope.id, waiting);
    try {
      const reply = await this.#link.open(JSON.stringify(envelope));
      this.#arrived(parsed(reply.text ?? ""), undefined);
    } catch (error) {
      this.#fail(envelope.id, error);
    }
  }

  async #notify(envelope: AnyNotification): Promise<void> {
    try {
      await this.#deliver({ body: JSON.stringify(envelope), elsewhere: true });
    } catch (error) {
      if (!this.#closed) this.#options.log.warn(`sandbox-agent: ${envelope.method} was not delivered`, error);
    }
  }

  async #request(envelope: AnyRequest): Promise<void> {
    const waiting = this.#prepared(envelope);
    this.#waiting.set(envelope.id, waiting);
    await this.#post(envelope.id, waiting);
  }

  #prepared(envelope: AnyRequest): Waiting {
    const { method } = envelope;
    const reads = READS.has(method);
    let key = randomName();
    let madeFor = this.generation;
    const renewedKey = (): string => {
      if (ATTACHING.has(method) && madeFor !== this.generation) {
        key = randomName();
        madeFor = this.generation;
      }
      return key;
    };
    const answered = new AbortController();
    // Prompts are queued as they arrive.
    const inTurn = this.#options.respondAsync && method === "session/prompt";
    const post: Post = {
      body: JSON.stringify(envelope),
      elsewhere: reads || sessionOf(envelope) !== undefined,
      respondAsync: this.#options.respondAsync,
      signal: answered.signal,
      ...(reads ? {} : { key: renewedKey }),
      ...(inTurn ? { queue: sessionOf(envelope) } : {}),
    };
    return { post, answered, accepted: false };
  }

  async #post(id: JsonRpcId, waiting: Waiting): Promise<void> {
    try {
      waiting.accepted = false;
      let reply = await this.#link.post(waiting.post);
      while (reply.text === undefined) {
        if (reply.generation === this.generation) {
          waiting.accepted = true;
          return;
        }
        // The connection that was to bring the answer is gone by now.
        if (!waiting.post.elsewhere) throw lost();
        reply = await this.#link.post(waiting.post);
      }
      await this.#caughtUp(reply);
      this.#arrived(parsed(reply.text), undefined);
    } catch (error) {
      this.#fail(id, error);
    }
  }

  async #answer(envelope: AnyResponse): Promise<void> {
    const asked = this.#asked.get(envelope.id) as Asked;
    let tries = 0;
    let failure: unknown;
    try {
      // Under the same id another connection may ask something else.
      const body = JSON.stringify({ ...envelope, id: asked.id });
      await this.#deliver({ body, elsewhere: false, onlyOn: asked.generation, trying: () => (tries += 1) });
    } catch (error) {
      failure = error;
    }
    const slug = failure instanceof ServerProblem ? failure.slug : undefined;
    // A repeat may be refused because its first try has already settled the request.
    if (slug === "already-answered" && tries > 1 && !asked.withdrawn) failure = undefined;
    if (this.#asked.get(envelope.id) !== asked) return;
    if (slug !== undefined && STILL_OPEN.has(slug) && !asked.withdrawn) {
      this.#user.answered(envelope.id, failure);
      // For upstream it is answered: it has to be asked again.
      this.#enqueue(asked.envelope);
      return;
    }
    this.#asked.delete(envelope.id);
    this.#user.answered(envelope.id, failure);
  }

  /** Sends an envelope without a response, until the server has it. A POST confirms it, a socket acknowledges it. */
  async #deliver(post: Post): Promise<void> {
    const ackId = randomName();
    const received = new AbortController();
    const acknowledged = new Promise<void>((resolve, reject) => {
      this.#acknowledgements.set(ackId, (envelope) => {
        if (isStopping(envelope)) return;
        if ("error" in envelope) reject(refusal(envelope.error));
        else resolve();
      });
    });
    try {
      await Promise.race([this.#link.post({ ...post, ackId, signal: received.signal }), acknowledged]);
    } finally {
      this.#acknowledgements.delete(ackId);
      received.abort("received");
    }
  }

  // In

  /** An event of the stream. */
  event(position: number, data: string): void {
    let envelope: AnyMessage;
    try {
      envelope = parsed(data);
    } catch (error) {
      this.#options.log.error("sandbox-agent: an event of the stream is no envelope", error);
      return;
    }
    const acknowledge = "method" in envelope ? undefined : this.#acknowledgements.get(envelope.id);
    if (acknowledge === undefined) this.#user.tap("received", envelope, position);
    if (acknowledge !== undefined) {
      acknowledge(envelope as AnyResponse);
    } else if (!("method" in envelope)) {
      void this.#late(envelope);
    } else if ("id" in envelope) {
      const { generation } = this;
      const named = { ...envelope, id: this.#named(envelope.id) };
      this.#asked.set(named.id, { envelope: named, id: envelope.id, generation, withdrawn: false });
      this.#enqueue(named);
    } else if (envelope.method === "$/cancel_request") {
      this.#withdraw(envelope);
    } else {
      const params = (envelope.params ?? {}) as Record<string, unknown>;
      const heard: Heard = { position, method: envelope.method, params, size: data.length };
      this.#handed += 1;
      this.#enqueue({ jsonrpc: "2.0", method: EVENT, params: heard });
    }
    this.#entered = position;
    this.#look();
  }

  #withdraw(envelope: AnyNotification): void {
    const params = (envelope.params ?? {}) as { requestId?: JsonRpcId; _meta?: Record<string, unknown> };
    const id = this.#named(params.requestId ?? null);
    const asked = this.#asked.get(id);
    if (asked === undefined) return;
    asked.withdrawn = true;
    this.#asked.delete(id);
    const meta = params._meta?.["sandboxagent.dev"] as { outcome?: unknown } | undefined;
    this.#user.withdrawn(id, meta?.outcome);
    this.#enqueue({ ...envelope, params: { ...params, requestId: id } });
  }

  /** Upstream's id of an agent's request. Each new connection sends the request again, under its permanent id. */
  #named(id: JsonRpcId): JsonRpcId {
    return this.generation <= 1 ? id : `${this.generation}/${String(id)}`;
  }

  /** An answer that came on the stream. */
  async #late(envelope: AnyResponse): Promise<void> {
    // A server that stops says so to all; the outcome is known when it is back.
    if (!this.#waiting.has(envelope.id) || isStopping(envelope)) return;
    await this.#allDispatched();
    this.#arrived(envelope, "stream");
  }

  /** There is a new connection. */
  renewed(): void {
    this.#entered = 0;
    for (const [id, asked] of this.#asked) {
      // What is still open is asked anew.
      asked.withdrawn = true;
      this.#user.withdrawn(id, undefined);
      this.#enqueue({ jsonrpc: "2.0", method: "$/cancel_request", params: { requestId: id } });
    }
    this.#asked.clear();
    this.#user.renewed();
    for (const [id, waiting] of this.#waiting) {
      if (!waiting.accepted) continue;
      if (waiting.post.elsewhere) void this.#post(id, waiting);
      else this.#fail(id, lost());
    }
    this.#look();
  }

  /** The server stays away. */
  away(error: ConnectionLost): void {
    for (const [id, waiting] of this.#waiting) if (waiting.accepted) this.#fail(id, error);
  }

  /** The stream is there, or broken. */
  streaming(live: boolean, why: unknown): void {
    this.#user.streaming(live, why);
  }

  #arrived(envelope: AnyMessage, source: "stream" | undefined): void {
    if ("method" in envelope) return;
    const waiting = this.#waiting.get(envelope.id);
    if (waiting === undefined) return;
    this.#waiting.delete(envelope.id);
    // A fixed reason: without one, a new error would be created each time.
    waiting.answered.abort("answered");
    if (source === undefined) this.#user.tap("received", envelope, undefined);
    this.#enqueue(envelope);
  }

  /** A request that got no answer fails alone: upstream is given an answer that carries the reason. */
  #fail(id: JsonRpcId, reason: unknown): void {
    if (!this.#waiting.delete(id)) return;
    const error = reason instanceof ClientError ? reason : new ClientError("the request failed", { cause: reason });
    this.#enqueue({ jsonrpc: "2.0", id, error: { code: -32603, message: error.message, data: error } });
  }

  #enqueue(envelope: AnyMessage): void {
    if (!this.#closed) this.#incoming.enqueue(envelope);
  }

  // Order

  /** Waits until the stream has brought the events before an answer. The two travel on different sockets. */
  async #caughtUp(reply: Reply): Promise<void> {
    await this.#until(() => this.#entered >= reply.lastEvent || this.generation !== reply.generation);
    await this.#allDispatched();
  }

  async #allDispatched(): Promise<void> {
    const handed = this.#handed;
    await this.#until(() => this.#dispatched >= handed);
  }

  #until(condition: () => boolean): Promise<void> {
    if (condition() || this.#closed) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.#conditions.delete(look);
        resolve();
      };
      const look = (): void => {
        if (condition() || this.#closed) done();
      };
      const timer = setTimeout(() => {
        this.#options.log.warn("sandbox-agent: the stream stays away; an answer comes before what should be before it");
        done();
      }, this.#options.timeout);
      this.#conditions.add(look);
    });
  }

  #look(): void {
    for (const look of [...this.#conditions]) look();
  }
}

/** The failure of a request whose connection is gone, and that has no meaning on another one. */
function lost(): ConnectionLost {
  return new ConnectionLost("the server went away before it had answered", { outcomeUnknown: true });
}

/** An envelope out of its text. */
function parsed(text: string): AnyMessage {
  const value: unknown = JSON.parse(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new TypeError("not an object");
  return value as AnyMessage;
}

function isStopping(envelope: AnyResponse): boolean {
  const data = "error" in envelope ? (envelope.error.data as { type?: unknown } | undefined) : undefined;
  return data?.type === "shutting-down";
}

/** The server's error about an answer, in the form of a POST's error. */
function refusal({ message, data }: { message: string; data?: unknown }): ServerProblem {
  const { type, title, status, ...fields } = (data ?? {}) as Record<string, unknown>;
  return new ServerProblem(String(type), String(title), Number(status), message, fields);
}

function sessionOf(envelope: AnyRequest): unknown {
  return (envelope.params as { sessionId?: unknown } | undefined)?.sessionId;
}
