/** What waits for a person in all sessions, also in those that this page is not attached to. */

import { useEffect, useMemo, useState } from "react";
import type { PendingRequest, SessionInfo } from "sandboxagent";

import { ASKED } from "../log/asking.js";
import { EventIds } from "../log/event.js";
import { objectAt, objectOf, textAt } from "../log/reading.js";
import type { Asked } from "../log/view.js";
import { useServer } from "../server/index.js";

export interface Waiting {
  readonly session: SessionInfo;
  readonly asked: Asked;
}

/** Asked again whenever the inventory says that something else waits. */
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
export function askedOf(request: PendingRequest): Asked | undefined {
  const envelope = objectOf(request.envelope);
  const make = ASKED[textAt(envelope, "method") ?? ""];
  if (make === undefined) return undefined;
  return {
    type: "asked",
    key: `pending-${request.sessionId}-${request.id}`,
    events: EventIds.of(),
    at: request.askedAt,
    requestId: envelope["id"] as string | number,
    turnKey: "",
    decision: undefined,
    ...make(objectAt(envelope, "params")),
  };
}
