/** What the palette lists for a few words (pure). */

import type { SessionInfo } from "sandboxagent";

import { stateOf, titleOf } from "../server/inventory.js";
import type { Command } from "./commands.js";

/** Something that can be chosen: a place to go, or something to do. */
export type Choice =
  | { readonly kind: "session"; readonly key: string; readonly session: SessionInfo }
  | { readonly kind: "command"; readonly key: string; readonly command: Command };

/** Sessions that are listed before a word is written, and at most after that. */
const RECENT = 5;
const MOST = 40;

/** Actions and pages first, as long as nothing is written; then sessions. A session that waits for a person leads. */
export function choicesFor(text: string, commands: readonly Command[], sessions: readonly SessionInfo[]): readonly Choice[] {
  const words = wordsOf(text);
  const doable = commands
    .filter(({ label }) => isAbout(label, words))
    .map((command): Choice => ({ kind: "command", key: `command ${command.label}`, command }));
  const places = sessions
    .filter((session) => isAboutSession(session, words))
    .toSorted((one, other) => rankOf(one) - rankOf(other) || other.updatedAt.localeCompare(one.updatedAt))
    .slice(0, words.length === 0 ? RECENT : MOST)
    .map((session): Choice => ({ kind: "session", key: `session ${session.sessionId}`, session }));
  return words.length === 0 ? [...places, ...doable] : [...doable, ...places];
}

/** What stands below a session's title, where there is room for all of it. */
export function aboutSession({ agent, cwd, sessionId, alias, node }: SessionInfo): string {
  return [agent, node, cwd, alias ?? sessionId].filter((each) => each !== undefined).join(" · ");
}

export function wordsOf(text: string): readonly string[] {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether a session has these words: in its title, its agent, its directory, its names. */
export function isAboutSession(session: SessionInfo, words: readonly string[]): boolean {
  return isAbout(`${titleOf(session)}\n${aboutSession(session)}\n${session.sessionId}`, words);
}

function isAbout(text: string, words: readonly string[]): boolean {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}

function rankOf(session: SessionInfo): number {
  const state = stateOf(session);
  return state === "waiting" ? 0 : state === "running" ? 1 : 2;
}
