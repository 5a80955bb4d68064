/**
 * Every envelope of a log as a line: what it is, which request it answers, how long that took.
 *
 * Made as the log grows, each entry once, and a few numbers each: lines are there when their envelopes are no longer kept.
 */

import { type Entry, type LogEvent, type RpcId, isGap } from "./event.js";
import { type Json, objectAt, textAt } from "./reading.js";


/** Where an envelope goes: to the agent, from the agent, or from the server to clients. */
export type Way = "toAgent" | "fromAgent" | "fromServer";

/** An envelope as a line. */
export interface Row {
  /** Its place in the log. */
  readonly index: number;
  /** Its event's id; of a gap, that of the last event before. */
  readonly id: number;
  /** When it was kept; empty for a gap. */
  readonly at: string;
  readonly way: Way;
  readonly kind: "request" | "response" | "notification" | "gap";
  /** Of a response: that of its request; empty when that is not in the log. */
  readonly method: string;
  /** What kind of its method it is: which update, which state, which outcome. */
  readonly subtype: string;
  readonly isError: boolean;
  /** Place of the request or the response that belongs to it. */
  readonly pair: number | undefined;
  /** Milliseconds between the two. */
  readonly latency: number | undefined;
}

const WAYS: readonly Way[] = ["toAgent", "fromAgent", "fromServer"];
const KINDS: readonly Row["kind"][] = ["request", "response", "notification", "gap"];

interface Name {
  readonly method: string;
  readonly subtype: string;
}

interface OpenRequest {
  readonly index: number;
  readonly method: string;
}

/** Rows of a log, in columns of numbers. */
export class Rows {
  readonly #ids: number[] = [];
  readonly #times: number[] = [];
  /** Way, kind and whether it is an error, in one number. */
  readonly #facts: number[] = [];
  /** Places in the table of names. */
  readonly #named: number[] = [];
  readonly #names: Name[] = [];
  readonly #places = new Map<string, number>();
  readonly #pairs = new Map<number, number>();
  /** Requests that have no answer yet, by who is asked and their id, oldest first. */
  readonly #open = new Map<string, OpenRequest[]>();
  /** How often each method and each subtype was seen, so that it can be chosen. */
  readonly methods = new Map<string, Map<string, number>>();

  get length(): number {
    return this.#ids.length;
  }

  /** The id of the last event before or at a place: gaps have none of their own. */
  idAt(index: number): number | undefined {
    return this.#ids[index];
  }

  /** When an event was kept, in milliseconds; undefined for a gap. */
  timeAt(index: number): number | undefined {
    const time = this.#times[index];
    return time === undefined || Number.isNaN(time) ? undefined : time;
  }

  /** How many entries there were at the moment of an event: it and all before. */
  countAt(id: number): number {
    let low = 0;
    let high = this.#ids.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#ids[middle] as number) <= id) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(index: number): Row | undefined {
    const [id, facts, named] = [this.#ids[index], this.#facts[index], this.#named[index]];
    if (id === undefined || facts === undefined || named === undefined) return undefined;
    const time = this.timeAt(index);
    const pair = this.#pairs.get(index);
    const other = pair === undefined ? undefined : this.timeAt(pair);
    return {
      index,
      id,
      at: time === undefined ? "" : new Date(time).toISOString(),
      way: WAYS[facts & 3] as Way,
      kind: KINDS[(facts >> 2) & 3] as Row["kind"],
      ...(this.#names[named] as Name),
      isError: facts >> 4 === 1,
      pair,
      latency: time === undefined || other === undefined ? undefined : Math.abs(other - time),
    };
  }

  add(entry: Entry): void {
    if (isGap(entry)) {
      this.#push(Math.max(this.#ids.at(-1) ?? 0, entry.after), Number.NaN, "fromServer", "gap", false, { method: "gap", subtype: "" });
      return;
    }
    const envelope = entry.envelope as unknown as Json;
    const method = textAt(envelope, "method");
    if (method === undefined) this.#response(entry, envelope);
    else this.#said(entry, envelope, method);
  }

  /** A request or a notification. */
  #said({ id, at, direction }: LogEvent, envelope: Json, method: string): void {
    const rpcId = envelope["id"] as RpcId | undefined;
    const time = Date.parse(at);
    if (rpcId !== undefined) {
      const key = keyOf(direction === "fromAgent", rpcId);
      this.#open.set(key, [...(this.#open.get(key) ?? []), { index: this.length, method }]);
    }
    const name = { method, subtype: subtypeOf(method, objectAt(envelope, "params")) };
    this.#push(id, time, wayOf(direction), rpcId === undefined ? "notification" : "request", false, name);
    this.#count(name);
  }

  #response({ id, at, direction }: LogEvent, envelope: Json): void {
    const isError = envelope["error"] !== undefined;
    const stopReason = textAt(objectAt(envelope, "result"), "stopReason");
    const key = keyOf(direction !== "fromAgent", envelope["id"] as RpcId);
    const request = this.#answered(key, isError, stopReason !== undefined);
    if (request) {
      this.#pairs.set(this.length, request.index);
      this.#pairs.set(request.index, this.length);
    }
    const name = { method: request?.method ?? "", subtype: isError ? "error" : (stopReason ?? "result") };
    this.#push(id, Date.parse(at), wayOf(direction), "response", isError, name);
    this.#count(name);
  }

  #push(id: number, time: number, way: Way, kind: Row["kind"], isError: boolean, name: Name): void {
    this.#ids.push(id);
    this.#times.push(time);
    this.#facts.push(WAYS.indexOf(way) | (KINDS.indexOf(kind) << 2) | (isError ? 16 : 0));
    const key = `${name.method} ${name.subtype}`;
    let place = this.#places.get(key);
    if (place === undefined) {
      place = this.#names.push(name) - 1;
      this.#places.set(key, place);
    }
    this.#named.push(place);
  }

  #count({ method, subtype }: Name): void {
    const subtypes = this.methods.get(method) ?? new Map<string, number>();
    this.methods.set(method, subtypes.set(subtype, (subtypes.get(subtype) ?? 0) + 1));
  }

  /** The request that is answered. Clients count for themselves: with the same id, what fits better counts. */
  #answered(key: string, isError: boolean, isTurn: boolean): OpenRequest | undefined {
    const open = this.#open.get(key) ?? [];
    const fitting = open.find(({ method }) => isError || isTurn === (method === "session/prompt")) ?? open[0];
    const rest = open.filter((each) => each !== fitting);
    if (rest.length > 0) this.#open.set(key, rest);
    else this.#open.delete(key);
    return fitting;
  }
}

function wayOf(direction: LogEvent["direction"]): Way {
  return direction === "fromClient" ? "toAgent" : direction;
}

function keyOf(fromAgent: boolean, id: RpcId): string {
  return `${fromAgent ? "agent" : "client"} ${JSON.stringify(id)}`;
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
