/**
 * A session's log, page by page, and in the form in which the stream would have sent it to this client.
 *
 * The log has prompts as they were sent. The stream shows those of others as `user_message_chunk`, when their turn has
 * started and the agent does not echo them itself.
 */

import type { ContentBlock } from "@agentclientprotocol/sdk";

import { RequestError } from "./errors.js";
import type { Page } from "./feed.js";
import type { Envelope, Heard } from "./stream.js";
import { ENDED, FINAL, GAP, type Gap, TURN, UPDATE } from "./updates.js";

/** Maximum number of events of a page. The server returns fewer when they are large. */
const PAGE = 2_000;

/** One event of a session's log. */
export interface LogEvent {
  /** Its position in the log. */
  readonly id: number;
  /** When the log got it: UTC, ISO 8601 with milliseconds. */
  readonly at: string;
  /** Whose it is. */
  readonly direction: "fromClient" | "fromAgent" | "fromServer";
  /** As it was sent. */
  readonly envelope: Envelope;
  /** Of an agent's request to a person that is open: the id to answer it by. */
  readonly requestId?: string;
}

/** A page of the log. */
export interface LogPage {
  readonly events: readonly LogEvent[];
  /** Where the following page begins; null at the end. */
  readonly next: number | null;
  /** The deleted events. */
  readonly gap?: { readonly after: number; readonly resumesAt: number };
}

/** Makes a request of the server. */
export type Ask = (method: string, params: Record<string, unknown>) => Promise<unknown>;

/** The events of a session between two positions, both exclusive. */
export async function logPage(ask: Ask, sessionId: string, after: number, before?: number): Promise<LogPage> {
  const range = before === undefined ? { after } : { after, before };
  return (await ask("_sandboxagent/session/events", { sessionId, ...range, limit: PAGE })) as LogPage;
}

/** Whether a request failed because the session was deleted, and its log with it. */
export function isDeleted(error: unknown): boolean {
  return error instanceof RequestError && error.slug === "unknown-session";
}

/** The events of a page, in order. */
export function eventsOf({ events, gap }: LogPage): (LogEvent | Gap)[] {
  return gap ? [{ sessionUpdate: "gap", ...gap }, ...events] : [...events];
}

/** Whether no event can follow. A session that has ended for another reason may be resumed. */
export function isFinal(event: LogEvent | Gap): boolean {
  if (!("envelope" in event) || !("method" in event.envelope) || event.envelope.method !== ENDED) return false;
  return FINAL.has((event.envelope.params as { reason?: unknown } | undefined)?.reason);
}

/** Reads the past of a session for one feed; `isOwn` tells prompts of this client's from those of others. */
export class Past {
  readonly #ask: Ask;
  readonly #sessionId: string;
  readonly #isOwn: (promptId: string) => boolean;
  #upto = -1;
  /** Prompts whose turn has not started, by their positions. */
  readonly #prompts = new Map<number, LogEvent>();
  /** The prompt of the turn that has begun, as updates, until its agent speaks. */
  #unechoed: Heard[] = [];

  constructor(ask: Ask, sessionId: string, isOwn: (promptId: string) => boolean) {
    this.#ask = ask;
    this.#sessionId = sessionId;
    this.#isOwn = isOwn;
  }

  /** The next items that the stream would have brought after a position. */
  async page(after: number): Promise<Page> {
    // Live events came in between, and with them whatever prompt was to be shown.
    if (after !== this.#upto) this.#unechoed = [];
    const page = await logPage(this.#ask, this.#sessionId, after);
    const heard: Heard[] = [];
    if (page.gap) heard.push({ position: after, method: GAP, params: { ...page.gap }, size: 0 });
    for (const event of page.events) heard.push(...(await this.#told(event)));
    this.#upto = page.events.at(-1)?.id ?? after;
    return { heard, upto: this.#upto, more: page.next !== null };
  }

  async #told(event: LogEvent): Promise<Heard[]> {
    const { id, direction, envelope } = event;
    const shown = direction === "fromAgent" ? this.#unechoed.splice(0) : [];
    if (!("method" in envelope)) return shown;
    if (direction === "fromClient") {
      if (envelope.method === "session/prompt") this.#prompts.set(id, event);
      return shown;
    }
    // What an agent asked is asked anew, by itself, while it is open.
    if ("id" in envelope || envelope.method.startsWith("$/")) return shown;
    const params = (envelope.params ?? {}) as Record<string, unknown>;
    const heard: Heard = { position: id, method: envelope.method, params, size: JSON.stringify(params).length };
    if (envelope.method === TURN) {
      if (params["state"] !== "started") return [...this.#unechoed.splice(0), heard];
      this.#unechoed = await this.#prompt(params, id);
    }
    const update = params["update"] as { sessionUpdate?: unknown } | undefined;
    const echoes = envelope.method === UPDATE && update?.sessionUpdate === "user_message_chunk";
    return echoes ? [heard] : [...shown, heard];
  }

  /** The prompt of a turn, as the updates that others see. A turn is named after its prompt's position. */
  async #prompt(turn: Record<string, unknown>, position: number): Promise<Heard[]> {
    const promptId = turn["promptId"];
    const at = Number(/^turn-(\d+)$/.exec(String(turn["turnId"]))?.[1]);
    let event = this.#prompts.get(at);
    this.#prompts.delete(at);
    if (Number.isNaN(at) || (typeof promptId === "string" && this.#isOwn(promptId))) return [];
    event ??= (await logPage(this.#ask, this.#sessionId, at - 1, at + 1)).events[0];
    const envelope = event?.envelope;
    const params = envelope && "params" in envelope ? (envelope.params as { prompt?: ContentBlock[] }) : {};
    return (params.prompt ?? []).map((content) => {
      const update = { sessionUpdate: "user_message_chunk", content };
      return { position, method: UPDATE, params: { sessionId: this.#sessionId, update }, size: 0 };
    });
  }
}
