/** Saving a log as a file, as the room of replays opens it. */

import { toast, wordsOf } from "../design/index.js";
import type { SessionLog } from "../log/session-log.js";
import { fileNameOf, linesOf } from "./exporting.js";

/** Saves the log, or its first entries, as a file of JSON lines. */
export async function download(log: SessionLog, upto = log.length): Promise<void> {
  const parts: Blob[] = [];
  try {
    for await (const entries of log.first(upto)) parts.push(new Blob([...linesOf(entries)]));
  } catch (error) {
    toast(wordsOf(error), "bad");
    return;
  }
  const file = new Blob(parts, { type: "application/x-ndjson" });
  const url = URL.createObjectURL(file);
  const link = document.createElement("a");
  link.href = url;
  link.download = fileNameOf(log.id);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  toast(`${upto.toLocaleString("en")} envelopes in ${link.download}`);
}
