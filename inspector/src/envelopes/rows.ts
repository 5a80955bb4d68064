/**
 * Every envelope of a log as a line: what it is, which request it answers, how long that took.
 *
 * Made as the log grows, each entry once; what only a line on the screen needs (its size, its preview) is made then.
 */

import { type Entry, type LogEvent, type RpcId, isGap } from "../log/event.js";
import { type Json, objectAt, objectOf, textAt } from "../log/reading.js";

/** Where an envelope goes: to the agent, from the agent, or from the server to clients. */
export type Way = "toAgent" | "fromAgent" | "fromServer";

/** An envelope as a line. */
export interface Row {
  /** Its place in the log. */
  readonly index: number;
  /** Its event's id; of a gap, that of the last event before. */
  readonly id: number;
  readonly at: string;
  readonly way: Way;
  readonly kind: "request" | "response" | "notification" | "gap";
  /** Of a response: that of its request; empty when that is not in the log. */
  readonly method: string;
  /** What kind of its method it is: which update, which state, which outcome. */
  readonly subtype: string;
  readonly rpcId: RpcId | undefined;
  readonly isError: boolean;
  /** Place of the request or the response that belongs to it. */
  pair: number | undefined;
  /** Milliseconds between the two. */
  latency: number | undefined;
}

/** Rows of a log, made as far as the log goes. */
export class Rows {
  readonly #rows: Row[] = [];
  /** Requests that have no answer yet, by who is asked and their id, oldest first. */
  readonly #open = new Map<string, Row[]>();
  /** How often each method and each subtype was seen, so that it can be chosen. */
  readonly methods = new Map<string, Map<string, number>>();

  get length(): number {
    return this.#rows.length;
  }

  at(index: number): Row | undefined {
    return this.#rows[index];
  }

  add(entry: Entry): void {
    const row = isGap(entry) ? gapRow(entry, this.#rows.length) : this.#row(entry);
    this.#rows.push(row);
    if (row.kind === "gap") return;
    const subtypes = this.methods.get(row.method) ?? new Map<string, number>();
    this.methods.set(row.method, subtypes.set(row.subtype, (subtypes.get(row.subtype) ?? 0) + 1));
  }

  #row(event: LogEvent): Row {
    const envelope = event.envelope as unknown as Json;
    const rpcId = envelope["id"] as RpcId | undefined;
    const method = textAt(envelope, "method");
    const { id, at, direction } = event;
    const way: Way = direction === "fromClient" ? "toAgent" : direction;
    const common = { index: this.#rows.length, id, at, way, rpcId, pair: undefined, latency: undefined };
    if (method !== undefined) {
      const kind = rpcId === undefined ? "notification" : "request";
      const row: Row = { ...common, kind, method, subtype: subtypeOf(method, objectAt(envelope, "params")), isError: false };
      if (kind === "request") {
        const key = keyOf(direction === "fromAgent", rpcId as RpcId);
        this.#open.set(key, [...(this.#open.get(key) ?? []), row]);
      }
      return row;
    }
    const isError = envelope["error"] !== undefined;
    const stopReason = textAt(objectAt(envelope, "result"), "stopReason");
    const request = this.#answered(keyOf(direction !== "fromAgent", rpcId as RpcId), isError, stopReason !== undefined);
    const subtype = isError ? "error" : (stopReason ?? "result");
    const row: Row = { ...common, kind: "response", method: request?.method ?? "", subtype, isError };
    if (request) {
      row.pair = request.index;
      row.latency = Math.max(0, Date.parse(at) - Date.parse(request.at));
      request.pair = row.index;
      request.latency = row.latency;
    }
    return row;
  }

  /** The request that is answered. Clients count for themselves: with the same id, what fits better counts. */
  #answered(key: string, isError: boolean, isTurn: boolean): Row | undefined {
    const open = this.#open.get(key) ?? [];
    const fitting = open.find(({ method }) => isError || isTurn === (method === "session/prompt")) ?? open[0];
    const rest = open.filter((each) => each !== fitting);
    if (rest.length > 0) this.#open.set(key, rest);
    else this.#open.delete(key);
    return fitting;
  }
}

function keyOf(fromAgent: boolean, id: RpcId): string {
  return `${fromAgent ? "agent" : "client"} ${JSON.stringify(id)}`;
}

function gapRow({ after }: { readonly after: number }, index: number): Row {
  return {
    index,
    id: after,
    at: "",
    way: "fromServer",
    kind: "gap",
    method: "gap",
    subtype: "",
    rpcId: undefined,
    isError: false,
    pair: undefined,
    latency: undefined,
  };
}

function subtypeOf(method: string, params: Json): string {
  switch (method) {
    case "session/update":
      return textAt(objectAt(params, "update"), "sessionUpdate") ?? "";
    case "_sandboxagent/session/turn":
      return textAt(params, "state") ?? "";
    case "_sandboxagent/session/decision":
      return textAt(params, "outcome") ?? "";
    case "_sandboxagent/session/ended":
      return textAt(params, "reason") ?? "";
    case "session/request_permission":
      return textAt(objectAt(params, "toolCall"), "kind") ?? "";
    case "elicitation/create":
      return textAt(params, "mode") ?? "";
    default:
      return "";
  }
}

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
