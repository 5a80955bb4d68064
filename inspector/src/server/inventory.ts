/**
 * All sessions of the server, of every agent and every client, kept up to date.
 *
 * The server's own list is asked again and again, and at once when an event says that something has changed. What is the
 * same stays the same object, so that only what has changed is drawn anew.
 */

import type { Envelope, SandboxAgent, SessionInfo } from "sandboxagent";

import type { SessionState } from "../log/view.js";
import { Store } from "./store.js";

export interface InventoryView {
  /** Newest first. */
  readonly sessions: readonly SessionInfo[];
  /** Whether the list has come at least once. */
  readonly loaded: boolean;
  /** How many requests wait for a person, in all sessions. */
  readonly waiting: number;
}

/** As many as the server gives at once. */
const PAGE = 200;
/** Milliseconds between two looks at the newest sessions. */
const SHORT = 2_000;
/** Every so many of them, a look at all. */
const ALL_EVERY = 5;
/** Milliseconds from an event to a look: several events are one look. */
const SOON = 120;
const TELLING = /^(?:_sandboxagent\/session\/|session\/request_permission$|elicitation\/create$|\$\/cancel_request$)/;
const EMPTY: InventoryView = { sessions: [], loaded: false, waiting: 0 };

export class Inventory {
  readonly view: Store<InventoryView> = new Store<InventoryView>(EMPTY);
  readonly #client: SandboxAgent;
  readonly #stop: () => void;
  readonly #whenShown = (): void => {
    if (!document.hidden) this.look();
  };
  #timer: ReturnType<typeof setTimeout> | undefined;
  #looking: Promise<void> | undefined;
  #again = false;
  #looks = 0;
  #closed = false;

  constructor(client: SandboxAgent) {
    this.#client = client;
    this.#stop = client.tap((direction, envelope) => {
      if (isTelling(direction, envelope)) this.#plan(SOON);
    });
    document.addEventListener("visibilitychange", this.#whenShown);
    this.look();
  }

  /** Looks now; at all of it when `all` is given. */
  look(all = false): void {
    if (all) this.#looks = 0;
    this.#again = true;
    if (this.#looking || this.#closed) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#again = false;
    this.#looking = this.#read().finally(() => {
      this.#looking = undefined;
      if (this.#closed) return;
      if (this.#again) this.#plan(SOON);
      else if (this.#timer === undefined) this.#plan(SHORT);
    });
  }

  close(): void {
    this.#closed = true;
    this.#stop();
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#whenShown);
  }

  #plan(delay: number): void {
    if (this.#looking) {
      this.#again = true;
      return;
    }
    if (delay === SOON) {
      clearTimeout(this.#timer);
      this.#timer = undefined;
    }
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      // A page that is not seen need not be up to date, but for what waits for the person.
      this.look();
    }, document.hidden ? Math.max(delay, SHORT) * 5 : delay);
  }

  async #read(): Promise<void> {
    const whole = this.#looks % ALL_EVERY === 0;
    const found: SessionInfo[] = [];
    try {
      for await (const each of this.#client.sessions.list()) {
        found.push(each);
        if (!whole && found.length === PAGE) break;
      }
    } catch {
      // The connection says what is wrong; the list stays as it was known.
      return;
    }
    this.#looks += 1;
    if (!this.#closed) this.view.set(merged(this.view.get(), found, whole || found.length < PAGE));
  }
}

/** What is known after a look; the same object when nothing has changed. */
export function merged(before: InventoryView, found: readonly SessionInfo[], whole: boolean): InventoryView {
  const known = new Map(before.sessions.map((each) => [each.sessionId, each]));
  const seen = new Set(found.map(({ sessionId }) => sessionId));
  const rest = whole ? [] : before.sessions.filter(({ sessionId }) => !seen.has(sessionId)).filter(isOlderThan(found.at(-1)));
  const sessions = [...found.map((each) => same(known.get(each.sessionId), each)), ...rest];
  const unchanged = before.sessions.length === sessions.length && sessions.every((each, at) => each === before.sessions[at]);
  if (unchanged && before.loaded) return before;
  return { sessions, loaded: true, waiting: sessions.reduce((sum, { pending }) => sum + pending, 0) };
}

/** How a session stands, for a person. */
export function stateOf(session: SessionInfo): SessionState {
  if (session.ended) return "ended";
  if (session.pending > 0) return "waiting";
  return session.running ? "running" : "idle";
}

/** What a session is called: by its agent, by who made it, or by its directory. */
export function titleOf(session: SessionInfo): string {
  return session.title?.trim() || session.alias || session.cwd.split("/").findLast(Boolean) || session.sessionId;
}

function isOlderThan(last: SessionInfo | undefined): (session: SessionInfo) => boolean {
  return ({ createdAt }) => last === undefined || createdAt <= last.createdAt;
}

function same(before: SessionInfo | undefined, now: SessionInfo): SessionInfo {
  return before && JSON.stringify(before) === JSON.stringify(now) ? before : now;
}

function isTelling(direction: "sent" | "received", envelope: Envelope): boolean {
  if (!("method" in envelope)) return false;
  if (direction === "sent") return envelope.method === "session/new" || envelope.method === "session/delete";
  return TELLING.test(envelope.method);
}
