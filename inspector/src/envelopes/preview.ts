/** What a line of the list says of an envelope: made only for lines that are on the screen (pure). */

import { type Entry, isGap } from "../log/event.js";
import { type Json, objectAt, objectOf, textAt } from "../log/reading.js";


/** What is most worth seeing of an entry in one line, at most that long. */
export function previewOf(entry: Entry, longest = 240): string {
  if (isGap(entry)) return `events ${entry.after + 1} to ${entry.resumesAt - 1} are no longer kept`;
  const envelope = entry.envelope as unknown as Json;
  const error = envelope["error"];
  if (error !== undefined) return oneLine(`${objectOf(error)["code"]} ${textAt(objectOf(error), "message") ?? ""}`, longest);
  if (envelope["method"] === undefined) return brief(envelope["result"], longest);
  const params = objectAt(envelope, "params");
  const said = saidIn(textAt(envelope, "method") ?? "", params);
  if (said !== undefined) return oneLine(said, longest);
  const { sessionId: _, ...rest } = params;
  return brief(rest, longest);
}

function saidIn(method: string, params: Json): string | undefined {
  if (method === "session/prompt") {
    const blocks = Array.isArray(params["prompt"]) ? params["prompt"] : [];
    return blocks.map((block) => textAt(objectOf(block), "text") ?? `[${String(objectOf(block)["type"])}]`).join(" ");
  }
  const update = objectAt(params, "update");
  const content = objectAt(update, "content");
  if (method === "session/update" && typeof content["text"] === "string") return content["text"];
  const call = method === "session/request_permission" ? objectAt(params, "toolCall") : update;
  const words = [textAt(call, "title"), textAt(call, "status")].filter((word) => word !== undefined);
  return words.length > 0 ? words.join(" · ") : undefined;
}

/** JSON, as far as it goes within a length; nothing beyond that is looked at. */
export function brief(value: unknown, longest: number): string {
  let text = "";
  const write = (piece: string): boolean => {
    text += piece;
    return text.length < longest;
  };
  const visit = (each: unknown): boolean => {
    if (typeof each === "string") return write(JSON.stringify(each.slice(0, longest)));
    if (Array.isArray(each)) {
      if (!write("[")) return false;
      for (const [index, one] of each.entries()) if ((index > 0 && !write(", ")) || !visit(one)) return false;
      return write("]");
    }
    if (typeof each === "object" && each !== null) {
      if (!write("{")) return false;
      let first = true;
      for (const [name, one] of Object.entries(each)) {
        if (!write(`${first ? "" : ", "}${name}: `) || !visit(one)) return false;
        first = false;
      }
      return write("}");
    }
    return write(String(each));
  };
  return visit(value) ? text : oneLine(text, longest);
}

function oneLine(text: string, longest: number): string {
  const start = text.slice(0, longest + 1).replace(/\s+/g, " ");
  return start.length > longest ? `${start.slice(0, longest)}…` : start;
}

/** Bytes of an envelope as JSON. */
export function sizeOf(entry: Entry): number {
  return isGap(entry) ? 0 : encoder.encode(JSON.stringify(entry.envelope)).length;
}

const encoder = new TextEncoder();
