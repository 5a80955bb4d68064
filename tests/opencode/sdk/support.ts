/** What the suites of both SDKs share: where the server is, what to say to it, and a record of all that it answered. */

import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";

/** A prompt, what is seen of it first, and what is said at its end. */
export interface Play {
  prompt: string;
  shows: string;
  says: string;
}

interface Given {
  url: string;
  password: string;
  directory: string;
  other_directory: string;
  /** Whether it is the bridge; else it is OpenCode itself, which can more. */
  bridge: boolean;
  /** The file that gets a line for every answer and every event. */
  record: string;
  can: Record<"hello" | "again" | "permission" | "question" | "endless" | "thought", Play> & {
    provider: string;
    model_ids: [string, string];
  };
}

export const given = JSON.parse(process.env["OPENCODE_GIVEN"] ?? "{}") as Given;
export const { can } = given;
export const model = { providerID: can.provider, modelID: can.model_ids[0] };
export const LONGEST = 300_000;

export const options = {
  baseUrl: given.url,
  directory: given.directory,
  headers: { Authorization: `Basic ${btoa(`opencode:${given.password}`)}` },
  fetch: recorded,
};

function record(line: object): void {
  appendFileSync(given.record, `${JSON.stringify(line)}\n`);
}

/** `fetch` that keeps what was answered; streams of events are kept event by event. */
async function recorded(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const request = new Request(input, init);
  const response = await fetch(request);
  const { pathname } = new URL(request.url);
  const path = pathname.slice(new URL(given.url).pathname.replace(/\/$/, "").length);
  const type = response.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    const body = await response.clone().text();
    record({ method: request.method, path, status: response.status, type, body });
  }
  return response;
}

/** The data of a call that must succeed. */
export function ok<T>(answer: { data?: T; error?: unknown; response?: Response }): T {
  assert.equal(answer.error, undefined, JSON.stringify(answer.error));
  assert.notEqual(answer.data, undefined);
  return answer.data as T;
}

/** The status and the body of a call that must fail. */
export function refused(answer: { error?: unknown; response?: Response }): [number | undefined, unknown] {
  assert.notEqual(answer.error, undefined, "it should have failed");
  return [answer.response?.status, answer.error];
}

/** An open stream of events. */
export class Events<E extends { type: string }> {
  readonly seen: E[] = [];
  readonly #stream: AsyncGenerator<unknown>;
  readonly #kind: "event" | "globalEvent";

  private constructor(stream: AsyncGenerator<unknown>, kind: "event" | "globalEvent") {
    this.#stream = stream;
    this.#kind = kind;
  }

  /** From now on: the server has said that it is connected. */
  static async open<E extends { type: string }>(
    opening: Promise<{ stream: AsyncGenerator<unknown> }>,
    kind: "event" | "globalEvent" = "event",
  ): Promise<Events<E>> {
    const events = new Events<E>((await opening).stream, kind);
    const first = await events.next();
    assert.equal(first.type, "server.connected");
    return events;
  }

  async next(): Promise<E> {
    const { done, value } = await this.#stream.next();
    assert.ok(!done, "the stream has ended");
    record({ [this.#kind]: value });
    const event = (this.#kind === "event" ? value : (value as { payload: unknown }).payload) as E;
    this.seen.push(event);
    return event;
  }

  /** The next event that is wanted. */
  async until<W extends E>(wanted: (event: E) => event is W): Promise<W>;
  async until(wanted: (event: E) => boolean): Promise<E>;
  async until(wanted: (event: E) => boolean): Promise<E> {
    for (;;) {
      const event = await this.next();
      if (wanted(event)) return event;
    }
  }

  async close(): Promise<void> {
    await this.#stream.return(undefined);
  }
}

/** What a message says. */
export function textOf(message: { parts: { type: string; text?: string }[] }): string {
  return message.parts
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("");
}
