/** What waits for a person in all sessions, also in those that this page is not attached to. */

import { useEffect, useMemo, useState } from "react";
import { EventIds, type PendingRequest, type RequestItem, type SessionInfo, requestFacts } from "sandboxagent";

import { objectAt, objectOf, textAt } from "../log/reading.js";
import { useServer } from "../server/index.js";

export interface Waiting {
  readonly session: SessionInfo;
  readonly asked: RequestItem;
}

/** RequestItem again whenever the inventory says that something else waits. */
export function useWaiting(sessions: readonly SessionInfo[]): readonly Waiting[] {
  const { client } = useServer();
  const [pending, setPending] = useState<readonly PendingRequest[]>([]);
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
      const [session, asked] = [byId.get(request.sessionId), askedOf(request)];
      return session && asked ? [{ session, asked }] : [];
    });
  }, [pending, sessions]);
}

/** A request as an item, as the log would have it; undefined for what no person can answer here. */
export function askedOf(request: PendingRequest): RequestItem | undefined {
  const envelope = objectOf(request.envelope);
  const facts = requestFacts(textAt(envelope, "method") ?? "", objectAt(envelope, "params"));
  if (facts === undefined) return undefined;
  return {
    type: "request",
    key: `pending-${request.sessionId}-${request.id}`,
    events: EventIds.of(),
    at: request.askedAt,
    requestId: request.id,
    agentRequestId: envelope["id"] as string | number,
    turnKey: "",
    decision: undefined,
    ...facts,
  };
}
