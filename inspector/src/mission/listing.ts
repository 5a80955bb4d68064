/** Which sessions mission control shows, and in which order (pure). */

import type { SessionInfo, SessionStatus } from "sandboxagent";

import { stateOf, titleOf } from "../server/inventory.js";

/** What is wanted. */
export interface Wanted {
  readonly state: SessionStatus | "all";
  readonly agent: string;
  readonly text: string;
}

export const ALL: Wanted = { state: "all", agent: "", text: "" };

const ORDER: Record<SessionStatus, number> = { waiting: 0, running: 1, idle: 2, ended: 3 };

/**
 * Sessions that match: what waits first, then what runs, then the rest; within these the newest first.
 *
 * By when they were made and not by what they do: a list that jumps with every word cannot be read.
 */
export function listed(sessions: readonly SessionInfo[], { state, agent, text }: Wanted): readonly SessionInfo[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return sessions
    .filter((session) => state === "all" || stateOf(session) === state)
    .filter((session) => agent === "" || session.agent === agent)
    .filter((session) => words.every((word) => searchedIn(session).includes(word)))
    .toSorted(
      (one, other) =>
        ORDER[stateOf(one)] - ORDER[stateOf(other)] ||
        other.createdAt.localeCompare(one.createdAt) ||
        one.sessionId.localeCompare(other.sessionId),
    );
}

const texts = new WeakMap<SessionInfo, string>();

function searchedIn(session: SessionInfo): string {
  let text = texts.get(session);
  if (text === undefined) {
    const { agent, cwd, sessionId, activity } = session;
    text = [titleOf(session), agent, cwd, sessionId, activity.said].join("\n").toLowerCase();
    texts.set(session, text);
  }
  return text;
}

/** How many there are of each. */
export function countsOf(sessions: readonly SessionInfo[]): Record<SessionStatus | "all", number> {
  const counts = { all: sessions.length, waiting: 0, running: 0, idle: 0, ended: 0 };
  for (const session of sessions) counts[stateOf(session)] += 1;
  return counts;
}

/** What all of them have used, as far as their agents say; costs in the currency that most of them use. */
export function usedBy(sessions: readonly SessionInfo[]): { tokens: number; cost: { amount: number; currency: string } | undefined } {
  let tokens = 0;
  const costs = new Map<string, number>();
  for (const { activity } of sessions) {
    tokens += activity.tokens ?? 0;
    if (activity.cost) costs.set(activity.cost.currency, (costs.get(activity.cost.currency) ?? 0) + activity.cost.amount);
  }
  const [most] = [...costs].toSorted(([, one], [, other]) => other - one);
  return { tokens, cost: most && { currency: most[0], amount: most[1] } };
}

export function tokensText(tokens: number): string {
  if (tokens < 1000) return String(tokens);
  if (tokens < 1_000_000) return `${(tokens / 1000).toFixed(tokens < 10_000 ? 1 : 0)}k`;
  return `${(tokens / 1_000_000).toFixed(1)}M`;
}

export function costText({ amount, currency }: { readonly amount: number; readonly currency: string }): string {
  try {
    const digits = amount < 1 ? 3 : 2;
    return new Intl.NumberFormat("en", { style: "currency", currency, minimumFractionDigits: digits, maximumFractionDigits: digits }).format(amount);
  } catch {
    return `${amount.toFixed(2)} ${currency}`;
  }
}
