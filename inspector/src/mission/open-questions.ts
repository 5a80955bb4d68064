/** What waits for a person in all sessions, also in those that this page is not attached to. */

import { useEffect, useMemo, useState } from "react";
import type { AgentRequest, RequestItem, SessionInfo } from "sandboxagent";

import { useServer } from "../server/index.js";
import { askedOf } from "../waiting/pending.js";

export interface Waiting {
  readonly session: SessionInfo;
  readonly asked: RequestItem;
}

/** RequestItem again whenever the inventory says that something else waits. */
export function useWaiting(sessions: readonly SessionInfo[]): readonly Waiting[] {
  const { client } = useServer();
  const [pending, setPending] = useState<readonly AgentRequest[]>([]);
  const waiting = sessions.filter((session) => session.pending > 0);
  const key = waiting.map((session) => `${session.sessionId} ${session.pending} ${session.eventCount}`).join("\n");
  useEffect(() => {
    if (key === "") {
      setPending([]);
      return undefined;
    }
    let current = true;
    client.pending().then(
      (found) => current && setPending(found),
      // The connection says what is wrong.
      () => undefined,
    );
    return () => {
      current = false;
    };
  }, [client, key]);
  return useMemo(() => {
    const byId = new Map(sessions.map((session) => [session.sessionId, session]));
    return pending.flatMap((request) => {
      const [session, asked] = [byId.get(request.sessionId ?? ""), askedOf(request, `pending-${request.id}`)];
      return session ? [{ session, asked }] : [];
    });
  }, [pending, sessions]);
}
