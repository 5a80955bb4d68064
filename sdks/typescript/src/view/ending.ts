/** Reads how a session ended (pure). */

import type { SessionEnded } from "../updates.js";
import { type Json, isObject, numberAt, textAt } from "./json.js";
import type { SessionEnd } from "./session-view.js";

/** How a session ended, as the server says it. */
export function sessionEnd(params: Json, at: string): SessionEnd {
  const stderr = params["stderr"];
  return {
    reason: textAt(params, "reason") ?? "unknown",
    terminatedBy: textAt(params, "terminatedBy") ?? "unknown",
    message: textAt(params, "message"),
    exitCode: numberAt(params, "exitCode"),
    signal: textAt(params, "signal"),
    stderr: isObject(stderr) ? (stderr as unknown as SessionEnded["stderr"]) : undefined,
    at,
  };
}

/** The same for people. */
export function endText({ message, reason, terminatedBy }: SessionEnd): string {
  if (message !== undefined) return message;
  if (reason === "error" && terminatedBy === "agent") return "The agent's process ended";
  return ENDINGS.get(reason) ?? "The session has ended";
}

const ENDINGS: ReadonlyMap<string, string> = new Map([
  ["closed", "The session was closed"],
  ["deleted", "The session was deleted"],
  ["terminated", "The session was ended for good"],
]);
