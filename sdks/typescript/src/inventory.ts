/**
 * All sessions of a server, kept up to date: first all of them, then those that have changed.
 *
 * The server says when something has changed; what it is comes from its list. However much happens meanwhile, it is one
 * answer, and nothing is asked while nothing happens. A server that cannot say it is asked again and again.
 */

import type { Connection } from "./connection.js";
import { RequestError } from "./errors.js";
import type { Http } from "./http.js";
import { Iteration } from "./iteration.js";
import type { SessionInfo } from "./sessions.js";

const CHANGES = "_sandboxagent/session/changes";
const METHOD_NOT_FOUND = -32601;
/** Milliseconds between two checks of a server that does not report changes. */
const BLIND = 2_000;

/** Changes of a server's sessions. */
export interface SessionChanges {
  /** New and changed sessions; all sessions if `all` is set. */
  readonly sessions: readonly SessionInfo[];
  /** The ids of deleted sessions. */
  readonly gone: readonly string[];
  /** Whether these are all sessions. Every other session was deleted. */
  readonly all: boolean;
}

interface SessionPage {
  readonly sessions: readonly SessionInfo[];
  readonly nextCursor?: string;
  readonly changes?: string;
  readonly gone?: readonly string[];
}

/** Options of a watch on a server's sessions. */
export interface WatchSessionsOptions {
  /** Minimum milliseconds between two checks for changes. Default: 500. */
  readonly every?: number;
}

/** @internal */
export function watchSessions(
  http: Http,
  connection: Connection,
  options: WatchSessionsOptions,
): Iteration<SessionChanges> {
  const left = new AbortController();
  return new Iteration(changed(http, connection, options.every ?? 500, left.signal), () => left.abort());
}

async function* changed(
  http: Http,
  connection: Connection,
  every: number,
  left: AbortSignal,
): AsyncGenerator<SessionChanges, void, undefined> {
  let page = await readAll(http);
  while (!left.aborted) {
    const looked = performance.now();
    if (page.gone === undefined || page.sessions.length > 0 || page.gone.length > 0) {
      yield { sessions: page.sessions, gone: page.gone ?? [], all: page.gone === undefined };
    }
    if (!(await somethingChanged(connection, page.changes, left)) || left.aborted) continue;
    await pause(looked + every - performance.now(), left);
    if (left.aborted) return;
    page = await readChanged(http, page.changes);
  }
}

async function readAll(http: Http): Promise<SessionPage> {
  return await wholeOf(http, await http.read<SessionPage>("/v1/sessions"));
}

async function readChanged(http: Http, changedAfter: string | undefined): Promise<SessionPage> {
  const page = await http.read<SessionPage>("/v1/sessions", { changedAfter });
  return page.gone === undefined ? await wholeOf(http, page) : page;
}

/** The first page and all after it, as of the moment of the first. */
async function wholeOf(http: Http, first: SessionPage): Promise<SessionPage> {
  const sessions = [...first.sessions];
  for (let cursor = first.nextCursor; cursor !== undefined; ) {
    const next: SessionPage = await http.read<SessionPage>("/v1/sessions", { cursor });
    sessions.push(...next.sessions);
    cursor = next.nextCursor;
  }
  return { ...first, sessions };
}

/** Waits for a change; false when none has come in the time that a server lets one wait. */
async function somethingChanged(
  connection: Connection,
  after: string | undefined,
  left: AbortSignal,
): Promise<boolean> {
  if (after !== undefined) {
    try {
      const { changes } = await orLeft(connection.request<{ changes: string }>(CHANGES, { after }), left);
      return changes !== after;
    } catch (error) {
      if (left.aborted) return false;
      if (!(error instanceof RequestError) || error.code !== METHOD_NOT_FOUND) throw error;
    }
  }
  await pause(BLIND, left);
  return true;
}

async function orLeft<T>(wanted: Promise<T>, left: AbortSignal): Promise<T> {
  wanted.catch(() => undefined);
  return await new Promise<T>((resolve, reject) => {
    const leave = (): void => reject(left.reason as Error);
    left.addEventListener("abort", leave, { once: true });
    wanted.then(resolve, reject).finally(() => left.removeEventListener("abort", leave));
    if (left.aborted) leave();
  });
}

async function pause(milliseconds: number, left: AbortSignal): Promise<void> {
  if (milliseconds <= 0 || left.aborted) return;
  await new Promise<void>((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      left.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    left.addEventListener("abort", end, { once: true });
  });
}
