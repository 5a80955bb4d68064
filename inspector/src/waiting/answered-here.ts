/** The requests that this page has answered itself: of these it can say "you", also after a reload. */

import { createContext } from "react";

const KEPT = "inspector.answered";
const MAX_KEPT = 500;

/** Keys of the requests in the session that is shown. */
export const AnsweredHere = createContext<ReadonlySet<string>>(new Set());

/** Remembers that a request was answered from here. */
export function rememberAnswer(sessionId: string, key: string): void {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify([...all(), [sessionId, key]].slice(-MAX_KEPT)));
  } catch {
    // A browser that keeps nothing only makes us say a name in place of "you".
  }
}

/** The keys of a session's requests that were answered from here. */
export function answersFromHere(sessionId: string): ReadonlySet<string> {
  return new Set(all().flatMap(([session, key]) => (session === sessionId ? [key] : [])));
}

function all(): [string, string][] {
  try {
    const found: unknown = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(found) ? (found as [string, string][]) : [];
  } catch {
    return [];
  }
}
