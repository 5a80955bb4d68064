/**
 * All sessions of the server, of every agent and every client, kept up to date: the server says when one has changed.
 *
 * What is the same stays the same object, so that only what has changed is drawn anew.
 */

import type { SandboxAgent, SessionChanges, SessionInfo, SessionStatus } from "sandboxagent";

import { Store } from "./store.js";

export interface InventoryView {
  /** Newest first. */
  readonly sessions: readonly SessionInfo[];
  /** Whether the list has come at least once. */
  readonly loaded: boolean;
  /** How many requests wait for a person, in all sessions. */
  readonly waiting: number;
}

/** Milliseconds between two looks at what has changed: more often than this, no one can read it. */
const CALM = 500;
/** Milliseconds between two tries. */
const PAUSE = 1_500;

export const NO_SESSIONS: InventoryView = { sessions: [], loaded: false, waiting: 0 };

export class Inventory {
  readonly view: Store<InventoryView> = new Store<InventoryView>(NO_SESSIONS);
  readonly #client: SandboxAgent;
  #watching: AsyncIterableIterator<SessionChanges> | undefined;
  #closed = false;

  constructor(client: SandboxAgent) {
    this.#client = client;
    void this.#follow();
  }

  close(): void {
    this.#closed = true;
    void this.#watching?.return?.();
  }

  async #follow(): Promise<void> {
    while (!this.#closed) {
      const watching = this.#client.sessions.watch({ every: CALM });
      this.#watching = watching;
      try {
        for await (const changes of watching) {
          if (this.#closed) return;
          this.view.set(merged(this.view.get(), changes));
        }
      } catch {
        // The connection says what is wrong; the list stays as it was known.
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }
}

/** What is known after some changes; the same object when there are none. */
export function merged(before: InventoryView, { sessions: changed, gone, all }: SessionChanges): InventoryView {
  const known = new Map(before.sessions.map((each) => [each.sessionId, each]));
  const now = all ? new Map<string, SessionInfo>() : new Map(known);
  for (const each of changed) now.set(each.sessionId, same(known.get(each.sessionId), each));
  for (const each of gone) now.delete(each);
  const sessions = [...now.values()];
  const isNew = sessions.length !== before.sessions.length || sessions.some(({ sessionId }) => !known.has(sessionId));
  if (isNew) sessions.sort(byAge);
  const unchanged = !isNew && sessions.every((each) => each === known.get(each.sessionId));
  if (unchanged && before.loaded) return before;
  return { sessions, loaded: true, waiting: sessions.reduce((sum, { pending }) => sum + pending, 0) };
}

function byAge(one: SessionInfo, other: SessionInfo): number {
  return other.createdAt.localeCompare(one.createdAt) || one.sessionId.localeCompare(other.sessionId);
}

/** How a session stands, for a person: in the words of `sandbox-agent sessions list`. What a prompt resumes is idle. */
export function stateOf(session: SessionInfo): SessionStatus {
  if (session.ended) return session.resumable ? "idle" : "ended";
  if (session.pending > 0) return "waiting";
  return session.running ? "running" : "idle";
}

/** What a session is called: by its agent, by who made it, or by its directory. */
export function titleOf(session: SessionInfo): string {
  return session.title?.trim() || session.alias || session.cwd.split("/").findLast(Boolean) || session.sessionId;
}

function same(before: SessionInfo | undefined, now: SessionInfo): SessionInfo {
  return before && JSON.stringify(before) === JSON.stringify(now) ? before : now;
}
