/** Where logs come from: a server, through the SDK. */

import { ConnectionLost, type SandboxAgent, type Session } from "sandboxagent";

import type { Entry } from "./event.js";
import type { Source } from "./log-book.js";

/** Reads the logs of a client's server. The client is attached to what it reads, so that it is asked as well. */
export function sourceOf(client: SandboxAgent): Source {
  const attached = new Map<string, Session>();
  return {
    async *follow(sessionId, after, signal) {
      const session = await client.sessions.attach(sessionId);
      attached.set(sessionId, session);
      const events = session.log({ after });
      signal.addEventListener("abort", () => void events.return(), { once: true });
      if (!signal.aborted) yield* events;
    },
    async between(sessionId, after, before) {
      const session = attached.get(sessionId) ?? (await client.sessions.attach(sessionId));
      const found: Entry[] = [];
      for await (const entry of session.log({ after, before })) found.push(entry);
      return found;
    },
  };
}

/** Whether reading may work later. */
export function mayPass(error: unknown): boolean {
  return error instanceof ConnectionLost;
}
