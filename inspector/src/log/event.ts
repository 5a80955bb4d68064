/** One event of a session's log, as the server keeps it and as an exported file has it. */

import type { Gap, LogEvent } from "sandboxagent";

export type { Gap, LogEvent };

/** Whose an envelope is. */
export type Direction = LogEvent["direction"];

/** A JSON-RPC id. */
export type RpcId = string | number;

/** What a log consists of: events, and places where events are no longer kept. */
export type Entry = LogEvent | Gap;

/** Whether an entry says that something is missing. */
export function isGap(entry: Entry): entry is Gap {
  return !("envelope" in entry);
}
