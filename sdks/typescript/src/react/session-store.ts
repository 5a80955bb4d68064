/** Follows one session for all components that show it. */

import {
  ConnectionLost,
  EMPTY_VIEW,
  type Following,
  type SandboxAgent,
  type Session,
  type SessionView,
} from "sandboxagent";

/** Milliseconds that a session is followed when no component shows it any more. */
const KEPT = 5_000;
/** Milliseconds between two tries to reach the server. */
const PAUSE = 1_000;

/** What is known of a session. */
export interface SessionState {
  /** The session; absent until the client is attached. */
  readonly session: Session | undefined;
  /** The session as it is now, with its whole past; empty until it is read. */
  readonly view: SessionView;
  /** `loading` while the past is read, `ended` after it was terminated or deleted, `failed` when it cannot be read. */
  readonly status: "loading" | "live" | "ended" | "failed";
  /** Why it cannot be read, or why it is not live. */
  readonly error: unknown;
}

/** A session that nothing is known of. */
export const LOADING: SessionState = { session: undefined, view: EMPTY_VIEW, status: "loading", error: undefined };

/** A session, followed while it has subscribers. */
export class SessionStore {
  readonly #client: SandboxAgent;
  readonly #id: string;
  readonly #forget: () => void;
  readonly #listeners = new Set<() => void>();
  #state: SessionState = LOADING;
  #reading: AbortController | undefined;
  #stopping: ReturnType<typeof setTimeout> | undefined;

  /** `forget` is called when no component has shown it for a while. */
  constructor(client: SandboxAgent, id: string, forget: () => void) {
    this.#client = client;
    this.#id = id;
    this.#forget = forget;
  }

  readonly state = (): SessionState => this.#state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    clearTimeout(this.#stopping);
    if (this.#reading === undefined) {
      this.#reading = new AbortController();
      void this.#read(this.#reading.signal);
    }
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#stopping = setTimeout(() => this.#stop(), KEPT);
    };
  };

  #stop(): void {
    this.#reading?.abort();
    this.#reading = undefined;
    this.#forget();
  }

  async #read(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.#follow(await this.#client.sessions.attach(this.#id), signal);
        if (!signal.aborted) this.#set({ status: "ended" });
        return;
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof ConnectionLost)) {
          this.#set({ status: "failed", error });
          return;
        }
        this.#set({ error });
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }

  async #follow(session: Session, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    const following: Following = session.follow({ view: this.#state.view });
    signal.addEventListener("abort", () => void following.return(), { once: true });
    following.onView(() => {
      const status = following.isLive ? "live" : "loading";
      if (!signal.aborted) this.#set({ session, view: following.view, status, error: undefined });
    });
    for await (const _ of following);
  }

  #set(change: Partial<SessionState>): void {
    this.#state = { ...this.#state, ...change };
    for (const listener of [...this.#listeners]) listener();
  }
}

const stores = new WeakMap<SandboxAgent, Map<string, SessionStore>>();

/** The one store of a session for a client. */
export function storeOf(client: SandboxAgent, id: string): SessionStore {
  const known = stores.get(client) ?? new Map<string, SessionStore>();
  stores.set(client, known);
  const store = known.get(id) ?? new SessionStore(client, id, () => known.delete(id));
  known.set(id, store);
  return store;
}
