/**
 * A connection of the server's, kept alive: bytes out by POST, events in by one GET; or both by one WebSocket.
 *
 * It reconnects after every cut: the stream continues after the last event, requests repeat under their key, and an
 * unknown connection is opened again. If WebSockets do not get through, it continues over HTTP.
 * This module does not read envelopes.
 */

import { ClientError, ConnectionGone, ConnectionLost, ServerProblem, closed, isAway } from "./errors.js";
import type { Http } from "./http.js";
import type { Logger } from "./log.js";
import { Outbox, type Outgoing } from "./outbox.js";
import { Socket, type SocketConstructor } from "./socket.js";
import { eventsOf } from "./sse.js";

const PATH = "/v1/rpc";
const CONNECTION = "X-ACP-Connection-Id";
const LAST_EVENT = "X-ACP-Last-Event-Id";
/** Milliseconds between two attempts to reach the server again. */
const FIRST_PAUSE = 100;
const MAX_PAUSE = 5_000;
/** Milliseconds after which a WebSocket that once worked is tried again, while HTTP does its work. */
const SOCKET_AGAIN = 30_000;
/** A try that lasted this long, while the server gave signs of life, was no sign of its absence. */
const LASTING = 1_000;
/** Factor by which the start of an agent may take longer than a socket may be silent. */
const AGENT_START = 5;
/** How often a new connection may be unknown when it is used. */
const RENEWALS = 3;
const FAREWELL = 2_000;

/** The user of a link. None of these may throw. */
export interface LinkUser {
  /** An event of the stream. */
  event(position: number, data: string): void;
  /** There is a new connection; nothing has been sent on it yet, and nothing of the old one is known to the server. */
  renewed(): void;
  /** The server was unreachable for as long as a request may wait. */
  away(error: ConnectionLost): void;
  /** Events come now; or no longer, and `why` says what broke. */
  streaming(live: boolean, why: unknown): void;
}

/** One envelope to send. */
export interface Post {
  readonly body: string;
  /** A repeat under the same key has the outcome of the first. */
  readonly key?: () => string;
  /** Of an envelope that no response answers: the id under which a WebSocket acknowledges it. */
  readonly ackId?: string;
  /** By POST, it is sent when the server has the one before it in the same queue; a WebSocket keeps the order. */
  readonly queue?: unknown;
  /** Whether it means the same on another connection. */
  readonly elsewhere: boolean;
  /** The one connection, by its number, that it may be sent on. */
  readonly onlyOn?: number;
  /** Have the answer to it on the stream. */
  readonly respondAsync?: boolean;
  /** Aborts when the caller no longer waits. */
  readonly signal?: AbortSignal;
  /** Called for each try. */
  readonly trying?: () => void;
}

/** The server's answer to a POST. */
export interface Reply {
  /** The answer; undefined when it comes on the stream, or there is none to come. */
  readonly text: string | undefined;
  /** The last event of the stream before the answer. */
  readonly lastEvent: number;
  /** Which connection it belongs to. */
  readonly generation: number;
}

/** Options of a link. */
export interface LinkOptions {
  /** Milliseconds that a request waits for a server that cannot be reached. */
  readonly timeout: number;
  /** Milliseconds without a sign of life after which a socket is taken for dead; the server gives one every 15 s. */
  readonly silence: number;
  /** Function that makes WebSockets; undefined for HTTP alone. */
  readonly webSocket: SocketConstructor | undefined;
  readonly log: Logger;
}

/** The connection, from the first `initialize` until it is closed. */
export class Link {
  /** How many connections there have been. */
  generation = 0;
  readonly #http: Http;
  readonly #user: LinkUser;
  readonly #timeout: number;
  readonly #silence: number;
  readonly #log: Logger;
  /** Function that makes WebSockets, while attempts are useful. */
  #webSocket: SocketConstructor | undefined;
  /** A WebSocket was open once. */
  #upgrades = false;
  #socket: Socket | undefined;
  /** Envelopes that are sent by WebSocket. */
  readonly #outbox: Outbox;
  /** Whether a stream over HTTP is open. */
  #streaming = false;
  /** Why there was no stream at the last try. */
  #failure: unknown;
  /** By queue: the newest POST, until the server has it. */
  readonly #queues = new Map<unknown, Promise<unknown>>();
  #closed = false;
  /** Signals of the requests under way. One shared signal would collect all of their listeners. */
  readonly #underWay = new Set<AbortController>();
  #initialize = "";
  #id: string | undefined;
  #seen: number | undefined;
  #heardAt = 0;
  #reading: AbortController | undefined;
  #renewing: Promise<void> | undefined;
  readonly #sleepers = new Set<() => void>();

  constructor(http: Http, user: LinkUser, options: LinkOptions) {
    this.#http = http;
    this.#user = user;
    this.#timeout = options.timeout;
    this.#silence = options.silence;
    this.#webSocket = options.webSocket;
    this.#log = options.log;
    this.#outbox = new Outbox(this.#timeout, () => asLost(this.#failure, this.#http.url));
  }

  /** Opens the connection with this `initialize`, and begins to read; gives the answer. */
  async open(initialize: string): Promise<Reply> {
    this.#initialize = initialize;
    const reply = await this.#persist(async (): Promise<Reply> => {
      try {
        return await this.#initialized();
      } catch (error) {
        if (!this.#closed && isAway(error)) this.#user.streaming(false, error);
        throw error;
      }
    });
    void this.#follow();
    return reply;
  }

  /**
   * Sends an envelope, until the server has answered.
   *
   * @throws ServerProblem, or ConnectionLost when there is no answer for too long.
   */
  async post(post: Post): Promise<Reply> {
    if (this.#closed) throw closed();
    const bySocket = this.#webSocket !== undefined && !this.#streaming;
    // What is to be sent now does not wait for the next try of a socket, which may be seconds away.
    if (bySocket && this.#socket === undefined) this.#wake();
    return await (bySocket ? this.#outbox.send(post) : this.#postInTurn(post));
  }

  /** Sends by POST, after the envelopes before it in its queue. */
  async #postInTurn(post: Post, sentOn?: number): Promise<Reply> {
    if (post.queue === undefined) return await this.#post(post, sentOn);
    const before = this.#queues.get(post.queue);
    const sent = Promise.resolve(before).then(() => this.#post(post, sentOn));
    const done = sent.catch(() => undefined);
    this.#queues.set(post.queue, done);
    try {
      return await sent;
    } finally {
      if (this.#queues.get(post.queue) === done) this.#queues.delete(post.queue);
    }
  }

  async #post(post: Post, alreadyOn?: number): Promise<Reply> {
    let sentOn = alreadyOn;
    let silent = false;
    return await this.#persist(async () => {
      const generation = this.generation;
      if (post.onlyOn !== undefined && post.onlyOn !== generation) {
        throw new ConnectionGone("the connection that was asked is gone; what is still open is asked anew");
      }
      if (sentOn !== undefined && sentOn !== generation && !post.elsewhere) {
        throw new ConnectionGone("the server went away before it had answered", { outcomeUnknown: true });
      }
      try {
        return await this.#once(post, generation, silent);
      } catch (error) {
        silent ||= error instanceof Silent;
        if (isUnknown(error)) {
          await this.#renew(generation);
          throw new TryAgain();
        }
        if (error instanceof ConnectionLost ? error.outcomeUnknown : isAway(error)) sentOn = generation;
        throw error;
      }
    }, post.signal);
  }

  /** Disconnects from the server; sessions and their turns continue. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const socket = this.#socket;
    socket?.goodbye();
    this.#outbox.close(closed());
    for (const controller of this.#underWay) controller.abort(closed());
    this.#wake();
    if (this.#id === undefined) return;
    if (socket !== undefined && (await farewell(socket))) return;
    const signal = AbortSignal.timeout(FAREWELL);
    await this.#http.send("DELETE", PATH, { headers: { [CONNECTION]: this.#id }, signal }).catch(() => undefined);
  }

  // Sending

  /** Retries until it works, it fails for good, or the server has been unreachable for too long. */
  async #persist<T>(attempt: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    let failingSince: number | undefined;
    let pause = FIRST_PAUSE;
    let renewals = 0;
    for (;;) {
      if (this.#closed) throw closed();
      signal?.throwIfAborted();
      const triedAt = Date.now();
      try {
        return await attempt();
      } catch (error) {
        if (error instanceof TryAgain) {
          renewals += 1;
          if (renewals > RENEWALS) throw new ConnectionLost(`${this.#http.url} forgets every connection at once`);
          continue;
        }
        if (!isAway(error) || error instanceof ConnectionGone) throw error;
        if (this.#closed) throw closed();
        const now = Date.now();
        // A request may have been waiting for hours: only the time the server is unreachable counts.
        const alive = now - triedAt > LASTING && this.#heardAt > triedAt;
        if (alive || now - triedAt > this.#timeout) failingSince = now;
        failingSince ??= triedAt;
        if (now - failingSince >= this.#timeout) throw asLost(error, this.#http.url);
        await this.#sleep(Math.min(pause, this.#timeout), signal);
        pause = Math.min(2 * pause, MAX_PAUSE);
      }
    }
  }

  async #once(post: Post, generation: number, silent: boolean): Promise<Reply> {
    const headers: Record<string, string> = { "Content-Type": "application/json", [CONNECTION]: this.#id ?? "" };
    if (post.key) headers["Idempotency-Key"] = post.key();
    // An answer may take hours. After a long silence the stream is to bring it, which shows that it is alive.
    if (post.respondAsync || silent) headers["Prefer"] = "respond-async";
    post.trying?.();
    return await this.#abortable(async (controller) => {
      const { signal } = controller;
      const timer = setTimeout(() => controller.abort(new Silent(this.#http.url)), this.#silence);
      try {
        const response = await this.#http.send("POST", PATH, { headers, body: post.body, signal });
        return reply(response, await this.#http.text(response, signal), generation);
      } finally {
        clearTimeout(timer);
      }
    }, post.signal);
  }

  // Opening

  async #initialized(): Promise<Reply> {
    const headers = { "Content-Type": "application/json" };
    const [response, text] = await this.#abortable(async (controller): Promise<[Response, string]> => {
      const { signal } = controller;
      const timer = setTimeout(() => controller.abort(new Silent(this.#http.url)), AGENT_START * this.#silence);
      try {
        const response = await this.#http.send("POST", PATH, { headers, body: this.#initialize, signal });
        return [response, await this.#http.text(response, signal)];
      } finally {
        clearTimeout(timer);
      }
    });
    const id = response.headers.get(CONNECTION);
    if (id === null) {
      throw new ClientError(
        `${this.#http.url} opened a connection and did not name it; a page of another origin needs a server that ` +
          `exposes ${CONNECTION} (--cors-origin)`,
      );
    }
    this.#id = id;
    this.#seen = undefined;
    this.generation += 1;
    return reply(response, text, this.generation);
  }

  /** Opens another connection, unless one has been opened since. */
  #renew(generation: number): Promise<void> {
    if (generation !== this.generation) return Promise.resolve();
    this.#renewing ??= this.#initialized()
      .then(() => {
        this.#user.renewed();
        this.#reading?.abort(new ConnectionLost("there is a newer connection"));
      })
      .finally(() => {
        this.#renewing = undefined;
      });
    return this.#renewing;
  }

  // Reading

  async #follow(): Promise<void> {
    let pause = FIRST_PAUSE;
    let awaySince: number | undefined;
    let refused = false;
    let forgotten = false;
    while (!this.#closed) {
      const { generation } = this;
      const seen = this.#seen;
      const triedAt = Date.now();
      let failure = await this.#abortable((reading) => this.#listen(reading)).catch((error: unknown) => error);
      if (this.#closed) return;
      this.#user.streaming(false, failure);
      if (isUnknown(failure)) failure = await this.#renew(generation).catch((error: unknown) => error);
      if (failure !== undefined && !isAway(failure) && !refused) {
        refused = true;
        this.#log.warn("sandbox-agent: the stream was refused; trying again", failure);
      }
      this.#failure = failure;
      if (this.#heardAt >= triedAt) {
        awaySince = undefined;
        refused = forgotten = false;
        if (seen !== this.#seen || Date.now() - triedAt > LASTING) pause = FIRST_PAUSE;
      } else {
        awaySince ??= triedAt;
        if (Date.now() - awaySince >= this.#timeout) this.#user.away(asLost(failure, this.#http.url));
      }
      // On a new connection at once, but not when each is forgotten as soon as it is there.
      if (generation !== this.generation && !forgotten) {
        forgotten = true;
        continue;
      }
      await this.#sleep(pause * (0.5 + Math.random() / 2));
      pause = Math.min(2 * pause, MAX_PAUSE);
    }
  }

  /** Reads events until the stream ends. Its error has the reason. */
  async #listen(reading: AbortController): Promise<void> {
    if (this.#webSocket === undefined || !(await this.#readSocket(reading, this.#webSocket))) await this.#read(reading);
  }

  /** The same over a WebSocket; false if none could be opened. */
  async #readSocket(reading: AbortController, make: SocketConstructor): Promise<boolean> {
    const { generation } = this;
    this.#reading = reading;
    const query = new URLSearchParams({ connection: this.#id ?? "" });
    if (this.#seen !== undefined) query.set("after", String(this.#seen));
    const openedAt = Date.now();
    const socket = new Socket(make, `${this.#http.url}${PATH}?${query}`, this.#http.token, {
      opened: () => {
        this.#upgrades = true;
        this.#heardAt = Date.now();
        this.#socket = socket;
        this.#outbox.opened(socket, generation);
        this.#wake();
        this.#user.streaming(true, undefined);
      },
      heard: (event) => {
        this.#heardAt = Date.now();
        if (event !== undefined && generation === this.generation) this.#take(event.position, event.data);
      },
    });
    const watch = this.#watch(openedAt, () => socket.leave());
    const leave = (): void => (this.#closed ? undefined : socket.leave());
    reading.signal.addEventListener("abort", leave);
    const { opened, tooLarge, failure } = await socket.ended;
    clearInterval(watch);
    reading.signal.removeEventListener("abort", leave);
    this.#socket = undefined;
    const refused = this.#outbox.gone(socket, tooLarge);
    // Over HTTP its caller learns what the limit is.
    if (refused !== undefined) this.#handOver(refused);
    if (failure !== undefined) throw failure;
    if (opened && !reading.signal.aborted) throw new ConnectionLost("the socket was cut");
    return reading.signal.aborted;
  }

  #handOver(outgoing: Outgoing): void {
    void this.#postInTurn(outgoing.post, outgoing.sentOn).then(
      (reply) => outgoing.settle(reply),
      (error: unknown) => outgoing.fail(error),
    );
  }

  /** HTTP works where a WebSocket does not. */
  #goOnOverHttp(reading: AbortController): ReturnType<typeof setTimeout> | undefined {
    this.#streaming = true;
    for (const outgoing of this.#outbox.drain()) this.#handOver(outgoing);
    if (this.#webSocket === undefined) return undefined;
    if (this.#upgrades) return setTimeout(() => reading.abort(new ConnectionLost("a socket is tried")), SOCKET_AGAIN);
    this.#webSocket = undefined;
    this.#log.warn("sandbox-agent: no WebSocket gets through, perhaps because of a proxy; going on over HTTP");
    return undefined;
  }

  #take(position: number, data: string): void {
    this.#seen = position;
    this.#user.event(position, data);
  }

  #watch(openedAt: number, end: () => void): ReturnType<typeof setInterval> {
    return setInterval(() => {
      if (Date.now() - Math.max(this.#heardAt, openedAt) > this.#silence) end();
    }, this.#silence / 4);
  }

  /** The same over HTTP. */
  async #read(reading: AbortController): Promise<void> {
    const { generation } = this;
    const { signal } = reading;
    this.#reading = reading;
    const headers: Record<string, string> = { Accept: "text/event-stream", [CONNECTION]: this.#id ?? "" };
    if (this.#seen !== undefined) headers["Last-Event-ID"] = String(this.#seen);
    const watch = this.#watch(Date.now(), () => reading.abort(new ConnectionLost("the stream is silent")));
    let again: ReturnType<typeof setTimeout> | undefined;
    try {
      const response = await this.#http.send("GET", PATH, { headers, signal });
      this.#heardAt = Date.now();
      again = this.#goOnOverHttp(reading);
      this.#wake();
      this.#user.streaming(true, undefined);
      for await (const events of eventsOf(this.#http.body(response))) {
        this.#heardAt = Date.now();
        for (const event of events) {
          if (generation !== this.generation || signal.aborted) return;
          this.#take(Number(event.id), event.data);
        }
      }
    } catch (error) {
      throw this.#http.lost(error, signal);
    } finally {
      clearInterval(watch);
      clearTimeout(again);
      this.#streaming = false;
      // Also after leaving the loop early: the rest is never read.
      reading.abort();
    }
  }

  // Waiting

  /** Runs something that ends when the link is closed or the caller gives up. */
  async #abortable<T>(work: (controller: AbortController) => Promise<T>, outer?: AbortSignal): Promise<T> {
    const controller = new AbortController();
    const abort = (): void => controller.abort(outer?.reason);
    this.#underWay.add(controller);
    outer?.addEventListener("abort", abort);
    try {
      return await work(controller);
    } finally {
      this.#underWay.delete(controller);
      outer?.removeEventListener("abort", abort);
    }
  }

  /** A pause that ends early when the server is there again. */
  #sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#sleepers.delete(wake);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      const timer = setTimeout(wake, milliseconds);
      this.#sleepers.add(wake);
      signal?.addEventListener("abort", wake);
    });
  }

  #wake(): void {
    for (const wake of [...this.#sleepers]) wake();
  }
}

/** A POST without an answer, for as long as a socket may be silent. */
class Silent extends ConnectionLost {
  constructor(url: string) {
    super(`${url} is silent`, { outcomeUnknown: true });
  }
}

/** An envelope can be sent now. */
class TryAgain extends Error {}

/** Whether a socket that says goodbye is closed in time. */
async function farewell(socket: Socket): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), FAREWELL);
  });
  const over = await Promise.race([socket.ended.then(() => true), late]);
  clearTimeout(timer);
  return over;
}

function isUnknown(error: unknown): boolean {
  return error instanceof ServerProblem && error.slug === "unknown-connection";
}

function asLost(error: unknown, url: string): ConnectionLost {
  if (error instanceof ConnectionLost) return error;
  const why = error instanceof Error ? error.message : "it ends every stream at once";
  return new ConnectionLost(`${url} cannot be used: ${why}`, { cause: error, outcomeUnknown: true });
}

function reply(response: Response, text: string, generation: number): Reply {
  const answer = response.status === 202 || text === "" ? undefined : text;
  return { text: answer, lastEvent: Number(response.headers.get(LAST_EVENT) ?? 0), generation };
}
