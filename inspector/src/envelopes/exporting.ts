/** Envelopes for elsewhere: as a file of JSON lines, and as a call of curl; and such a file read back (pure). */

import type { Entry, LogEvent } from "../log/event.js";
import { numberAt, objectOf, textAt } from "../log/reading.js";


/** A log as JSON lines, as `sandbox-agent sessions events --json` prints it. */
export function* linesOf(entries: Iterable<Entry>): Generator<string> {
  for (const entry of entries) yield `${JSON.stringify(entry)}\n`;
}

/** What was read from a file. */
export interface Opened {
  readonly entries: readonly Entry[];
  /** Lines that are no events, by their numbers from 1. */
  readonly bad: readonly number[];
}

/** Reads JSON lines. What is no event is passed over, and said. */
export function readLines(text: string): Opened {
  const entries: Entry[] = [];
  const bad: number[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const entry = entryOf(line);
    if (entry) entries.push(entry);
    else bad.push(index + 1);
  }
  return { entries, bad };
}

function entryOf(line: string): Entry | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  const found = objectOf(value);
  const [after, resumesAt] = [numberAt(found, "after"), numberAt(found, "resumesAt")];
  if (after !== undefined && resumesAt !== undefined) return { sessionUpdate: "gap", after, resumesAt };
  const [id, at, direction] = [numberAt(found, "id"), textAt(found, "at"), textAt(found, "direction")];
  const envelope = found["envelope"];
  if (id === undefined || at === undefined || !DIRECTIONS.has(direction) || typeof envelope !== "object" || !envelope) {
    return undefined;
  }
  return { id, at, direction, envelope } as LogEvent;
}

const DIRECTIONS: ReadonlySet<unknown> = new Set<LogEvent["direction"]>(["fromClient", "fromAgent", "fromServer"]);

/**
 * A command that sends what a client sent, or reads from the log what came from elsewhere.
 *
 * It has neither a token nor a connection in it: those are secrets, and are taken from the shell's variables.
 */
export function curlOf(event: LogEvent, sessionId: string, url: string): string {
  const { id, direction } = event;
  const read = { jsonrpc: "2.0", id: 1, method: "_sandboxagent/session/events", params: { sessionId, after: id - 1, before: id + 1 } };
  const body = JSON.stringify(direction === "fromClient" ? event.envelope : read);
  return [
    `curl -sS ${quoted(`${url}/v1/rpc`)}`,
    `-H "Authorization: Bearer $TOKEN"`,
    `-H "X-ACP-Connection-Id: $CONNECTION"`,
    `-H 'Content-Type: application/json'`,
    `--data-raw ${quoted(body)}`,
  ].join(" \\\n  ");
}

/** A word for a shell, as it is. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A name for an exported log. */
export function fileNameOf(sessionId: string): string {
  return `${sessionId.replaceAll(/[^A-Za-z0-9._-]+/g, "-").slice(0, 80)}.jsonl`;
}
