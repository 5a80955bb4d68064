/**
 * Tabs of one browser hand each other the token, so that a new tab needs no sign-in, and one sign-out is one for all.
 *
 * The token goes from page to page over a channel that only pages of this origin hear, and that keeps nothing: when the
 * last tab is closed, the token is gone. A page in a frame takes no part, because another site surrounds it.
 */

const CHANNEL = "inspector.token";

type Said = { readonly says: "ask" } | { readonly says: "token"; readonly token: string } | { readonly says: "forget" };

interface TabsOptions {
  /** The token of this tab, if the server has accepted it. */
  readonly held: () => string | undefined;
  /** Another tab has said the token: because it was asked for, or because the person has signed in there. */
  readonly onToken: (token: string) => void;
  /** The person has signed out in another tab. */
  readonly onForget: () => void;
}

export class Tabs {
  readonly #channel: BroadcastChannel | undefined;
  readonly #waiting = new Set<(token: string) => void>();

  constructor({ held, onToken, onForget }: TabsOptions) {
    if (window.top !== window.self || typeof BroadcastChannel === "undefined") return;
    this.#channel = new BroadcastChannel(CHANNEL);
    this.#channel.addEventListener("message", ({ data }: MessageEvent<unknown>) => {
      const said = saidIn(data);
      if (said?.says === "ask") {
        const token = held();
        if (token !== undefined) this.tell(token);
      } else if (said?.says === "token") {
        for (const take of this.#waiting) take(said.token);
        onToken(said.token);
      } else if (said?.says === "forget") onForget();
    });
  }

  /** The token of another tab; undefined when none answers in so many milliseconds. */
  async ask(patience: number): Promise<string | undefined> {
    if (this.#channel === undefined) return undefined;
    let take: (token: string | undefined) => void = () => undefined;
    const answer = new Promise<string | undefined>((resolve) => (take = resolve));
    this.#waiting.add(take);
    const timer = setTimeout(() => take(undefined), patience);
    this.call();
    try {
      return await answer;
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(take);
    }
  }

  /** Asks the other tabs for the token; `onToken` has their answers. */
  call(): void {
    this.#say({ says: "ask" });
  }

  /** Tells the other tabs the token. */
  tell(token: string): void {
    this.#say({ says: "token", token });
  }

  /** Signs out in the other tabs. */
  forget(): void {
    this.#say({ says: "forget" });
  }

  #say(said: Said): void {
    this.#channel?.postMessage(said);
  }
}

function saidIn(data: unknown): Said | undefined {
  const { says, token } = (typeof data === "object" && data !== null ? data : {}) as Record<string, unknown>;
  if (says === "token") return typeof token === "string" ? { says, token } : undefined;
  return says === "ask" || says === "forget" ? { says } : undefined;
}
