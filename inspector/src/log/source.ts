/** Where logs come from: a server, through the SDK. */

import { ConnectionLost, type SandboxAgent } from "sandboxagent";

import type { Source } from "./log-book.js";

/** Reads the logs of a client's server. The client is attached to what it reads, so that it is asked as well. */
export function sourceOf(client: SandboxAgent): Source {
  return async function* (sessionId, after, signal) {
    const session = await client.sessions.attach(sessionId);
    const events = session.follow({ after });
    signal.addEventListener("abort", () => void events.return(), { once: true });
    if (!signal.aborted) yield* events;
  };
}

/** Whether reading may work later. */
export function mayPass(error: unknown): boolean {
  return error instanceof ConnectionLost;
}
