/**
 * The connection to the server that this page came from, and how it stands.
 *
 * A thin layer on the SDK, which mends what breaks. What is added here: the states that a person sees, and no try with
 * a token that was refused.
 */

import { ConnectionLost, type Health, SandboxAgent, ServerProblem } from "sandboxagent";

import { OpenRequests, serveRequests } from "../waiting/open-requests.js";
import { Store } from "./store.js";
import { Tabs } from "./tabs.js";
import { acceptToken, forgetToken, wantsToken, wasAccepted } from "./token.js";

export type ConnectionView =
  | { readonly state: "connecting" }
  | { readonly state: "live" }
  /** It was there, and is being tried again. */
  | { readonly state: "reconnecting"; readonly error: unknown }
  /** It wants a token: none was given, this is not one, or it was one once. */
  | { readonly state: "refused"; readonly why: "missing" | "wrong" | "expired" }
  /** Nothing answers, or something that is no sandbox-agent. */
  | { readonly state: "absent"; readonly error: unknown };

/** Starts at once, because it is part of the server; a connection has to name an agent. */
const CHEAPEST_AGENT = "mock";
/** Milliseconds between two tries to find a server. */
const PAUSE = 1_500;
/** Milliseconds that another tab has to say the token, before the page tries without one. One that says it later is heard, too. */
const PATIENCE = 300;
/** A person may wait for long; the page says meanwhile that it is trying. */
const TIMEOUT = 10 * 60_000;

export class ServerConnection {
  readonly view: Store<ConnectionView> = new Store<ConnectionView>({ state: "connecting" });
  readonly client: Store<SandboxAgent | undefined> = new Store<SandboxAgent | undefined>(undefined);
  readonly health: Store<Health | undefined> = new Store<Health | undefined>(undefined);
  readonly #url: string;
  readonly #tabs: Tabs;
  /** The token that the server has accepted. */
  #accepted: string | undefined;
  /** The token that it has refused. */
  #refused: string | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #attempt = 0;

  constructor(url: string) {
    this.#url = url;
    this.#tabs = new Tabs({
      held: () => this.#accepted,
      onToken: (token) => {
        if (this.view.get().state === "refused" && token !== this.#refused) void this.connect(token);
      },
      onForget: () => void this.#signOut(),
    });
  }

  /** Connects for the first time: with this token, or with the one of another tab. */
  async begin(token: string | undefined): Promise<void> {
    const attempt = (this.#attempt += 1);
    const known = token ?? (wantsToken() ? await this.#tabs.ask(PATIENCE) : undefined);
    if (attempt === this.#attempt) await this.connect(known);
  }

  /** Whether the person has signed in: a server may want no token. */
  get isSignedIn(): boolean {
    return this.#accepted !== undefined;
  }

  /** Connects with a token, in place of any connection there is. */
  async connect(token: string | undefined): Promise<void> {
    const attempt = (this.#attempt += 1);
    clearTimeout(this.#retry);
    await this.#leave();
    if (this.view.get().state !== "absent") this.view.set({ state: "connecting" });
    let client: SandboxAgent;
    const requests = new OpenRequests();
    try {
      client = await SandboxAgent.connect(this.#url, {
        ...(token !== undefined && { token }),
        agent: CHEAPEST_AGENT,
        name: "inspector",
        reconnectTimeout: TIMEOUT,
        // All are left open, for the person to answer.
        ...requests.handlers,
      });
      if (attempt !== this.#attempt) return await client.close();
      this.health.set(await client.health());
    } catch (error) {
      if (attempt === this.#attempt) this.#failed(error, token);
      return;
    }
    if (attempt !== this.#attempt) return await client.close();
    if (token !== undefined) this.#accept(token);
    serveRequests(client, requests);
    this.client.set(client);
    this.view.set({ state: "live" });
    client.onConnectionChange(({ state, error }) => {
      if (this.client.get() !== client) return;
      if (state === "live") this.#returned(client);
      else if (state === "reconnecting" && isUnauthorized(error)) this.#failed(error, token);
      else if (state === "reconnecting") this.view.set({ state: "reconnecting", error });
    });
    this.#listen(client, token);
  }

  /** Opens the stream of events, by asking for anything. */
  #listen(client: SandboxAgent, token: string | undefined): void {
    client.pending().catch((error: unknown) => {
      if (this.client.get() !== client) return;
      if (isUnauthorized(error)) this.#failed(error, token);
      else this.#retry = setTimeout(() => this.#listen(client, token), PAUSE);
    });
  }

  #accept(token: string): void {
    this.#accepted = token;
    acceptToken(token);
    this.#tabs.tell(token);
  }

  /** Forgets the token, in all tabs, and asks for one. */
  async disconnect(): Promise<void> {
    this.#tabs.forget();
    await this.#signOut();
  }

  async #signOut(): Promise<void> {
    this.#attempt += 1;
    clearTimeout(this.#retry);
    forgetToken();
    await this.#leave();
    this.view.set({ state: "refused", why: "missing" });
  }

  #returned(client: SandboxAgent): void {
    const before = this.view.get().state;
    this.view.set({ state: "live" });
    if (before !== "live") client.health().then((health) => this.health.set(health), () => undefined);
  }

  #failed(error: unknown, token: string | undefined): void {
    void this.#leave();
    if (isUnauthorized(error)) {
      const why = token === undefined ? "missing" : wasAccepted(token) ? "expired" : "wrong";
      this.#refused = token;
      this.view.set({ state: "refused", why });
      // The person may have signed in elsewhere, with the token of a server that was started anew.
      this.#tabs.call();
      return;
    }
    this.view.set({ state: "absent", error });
    if (error instanceof ConnectionLost || error instanceof ServerProblem) {
      this.#retry = setTimeout(() => void this.connect(token), PAUSE);
    }
  }

  async #leave(): Promise<void> {
    const client = this.client.get();
    this.#accepted = undefined;
    this.client.set(undefined);
    await client?.close();
  }
}

function isUnauthorized(error: unknown): boolean {
  return error instanceof ServerProblem && error.status === 401;
}
