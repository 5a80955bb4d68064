/**
 * Answering agents' requests: in handlers, or later by id. The first answer wins, here and at the server.
 *
 * On any doubt the answer is *reject*: for a handler that fails, and for an answer that does not fit.
 */

import {
  type CreateElicitationResponse,
  type JsonRpcId,
  type MaybePromise,
  RequestError,
  type RequestPermissionResponse,
} from "@agentclientprotocol/sdk";

import { AlreadyAnswered, ClientError, ServerProblem } from "./errors.js";
import type { Logger } from "./log.js";
import { ElicitationRequest, PermissionRequest, type QuestionAnswer, QuestionRequest } from "./requests.js";
import { idOf, STILL_OPEN } from "./stream.js";
import type { Decision } from "./updates.js";

/** Decides on a permission; undefined defers it: `client.replyPermission(request.id, …)` answers it later. */
export type PermissionHandler = (
  request: PermissionRequest,
) => MaybePromise<RequestPermissionResponse | undefined | void>;
/** Answers a question; undefined defers it: `client.replyQuestion(request.id, …)` answers it later. */
export type QuestionHandler = (request: QuestionRequest) => MaybePromise<QuestionAnswer | undefined | void>;
/** Fills in a form; undefined defers it: `client.replyElicitation(request.id, …)` answers it later. */
export type ElicitationHandler = (
  request: ElicitationRequest,
) => MaybePromise<CreateElicitationResponse | undefined | void>;

/** The handlers that answer agents' requests. */
export interface Handlers {
  /** Decides on permissions. */
  onPermission?: PermissionHandler;
  /** Answers questions. */
  onQuestion?: QuestionHandler;
  /** Fills in forms. Set it from the start to get forms; otherwise they arrive as questions. */
  onElicitation?: ElicitationHandler;
}

interface Kinds {
  readonly "session/request_permission": typeof PermissionRequest;
  readonly "_sandboxagent/session/request_question": typeof QuestionRequest;
  readonly "elicitation/create": typeof ElicitationRequest;
}

/** The three kinds of requests by their methods. */
export const KINDS: Kinds = {
  "session/request_permission": PermissionRequest,
  "_sandboxagent/session/request_question": QuestionRequest,
  "elicitation/create": ElicitationRequest,
};

/** The method of a request that people answer. */
export type AskingMethod = keyof Kinds;

/** Whether people answer requests of a method. */
export function isAskingMethod(method: string): method is AskingMethod {
  return Object.hasOwn(KINDS, method);
}

type Request = InstanceType<Kinds[AskingMethod]>;
/** An answer to a request. */
export type Answer = RequestPermissionResponse | QuestionAnswer | CreateElicitationResponse;

/** How many settled requests are remembered, so that a late answer gets the outcome. */
const REMEMBERED = 1_000;

/** A request that waits for an answer of this client. */
interface Asked {
  readonly rpcId: JsonRpcId;
  readonly request: Request;
  /** Behind the request's signal. */
  readonly over: AbortController;
  /** Hands an answer to upstream; undefined while one is under way. */
  give: ((answer: Answer) => void) | undefined;
  /** Where the answer that is under way came from. */
  by: "handler" | "reply" | "rejection" | undefined;
  /** Reports the outcome to the caller of `reply`. */
  replied: { resolve: () => void; reject: (failure: unknown) => void } | undefined;
  /** Why the last answer did not count. */
  refusal: unknown;
}

/** The open requests, and the handlers. */
export class Asking {
  readonly handlers: Handlers;
  readonly ofSession: Map<string, Handlers> = new Map();
  /** Whether no other client can answer requests without a handler here. */
  readonly #alone: boolean;
  readonly log: Logger;
  readonly #open = new Map<JsonRpcId, Asked>();
  readonly #settled = new Map<string, unknown>();
  readonly #warned = new Set<string>();
  /** Callbacks that wait until a request is known. */
  readonly #arrivals = new Set<() => void>();

  constructor(handlers: Handlers, alone: boolean, log: Logger) {
    this.handlers = handlers;
    this.#alone = alone;
    this.log = log;
  }

  // Called by upstream

  /** The answer to an agent's request, once there is one. Rejects when the request is withdrawn. */
  async ask(
    method: AskingMethod,
    rpcId: JsonRpcId,
    params: Readonly<Record<string, unknown>>,
    signal: AbortSignal,
  ): Promise<Answer> {
    // It may be withdrawn before upstream has come to call us.
    signal.throwIfAborted();
    const known = this.#open.get(rpcId);
    const asked = known ?? this.#begin(method, rpcId, params);
    const answer = new Promise<Answer>((resolve) => {
      asked.give = resolve;
    });
    // The stream may have announced a withdrawal before the request arrived here.
    signal.addEventListener("abort", () => this.withdrawn(rpcId, this.#settled.get(idOf(rpcId))), { once: true });
    if (known) this.#askAgain(known);
    else void this.#decide(asked);
    return await Promise.race([answer, aborted(signal)]);
  }

  /** A request of a method that we know nothing of. */
  async stranger(method: string, signal: AbortSignal): Promise<never> {
    if (this.#alone) throw RequestError.methodNotFound(method);
    // Another client may understand it.
    return await aborted(signal);
  }

  // Called for events of the stream

  /** An answer was taken; or not, and `failure` says why. */
  answered(rpcId: JsonRpcId, failure: unknown): void {
    const asked = this.#open.get(rpcId);
    if (asked === undefined) return;
    const { replied } = asked;
    asked.replied = undefined;
    if (failure instanceof ServerProblem && STILL_OPEN.has(failure.slug)) {
      asked.refusal = failure;
      replied?.reject(failure);
      return;
    }
    const late = failure instanceof ServerProblem && (failure.status === 404 || failure.status === 409);
    this.#settle(asked, late ? failure.fields["outcome"] : "answered");
    if (failure === undefined) replied?.resolve();
    else if (replied) replied.reject(failure);
    else if (!late) this.log.warn("sandbox-agent: an answer was not delivered", failure);
  }

  /** The request no longer needs an answer. */
  withdrawn(rpcId: JsonRpcId, outcome: unknown): void {
    const asked = this.#open.get(rpcId);
    if (asked === undefined) {
      this.#remember(idOf(rpcId), outcome);
      return;
    }
    const { id } = asked.request;
    this.#settle(asked, outcome);
    asked.replied?.reject(outcome === undefined ? nobodyAsked(id) : alreadyAnswered(id, outcome));
  }

  // Called by users of the SDK

  /** Answers a request by its id; rejects with a ServerProblem when it is too late, or the answer does not fit. */
  async reply<T extends Request>(
    kind: abstract new (...parameters: never[]) => T,
    id: string,
    answer: (request: T) => Answer,
  ): Promise<void> {
    const asked = [...this.#open.values()].find(({ request }) => request.id === id && request instanceof kind);
    if (asked === undefined) throw this.#settled.has(id) ? alreadyAnswered(id, this.#settled.get(id)) : nobodyAsked(id);
    if (asked.give === undefined) throw alreadyAnswered(id, "answered");
    const given = answer(asked.request as T);
    await new Promise<void>((resolve, reject) => {
      asked.replied = { resolve, reject };
      this.#give(asked, given, "reply");
    });
  }

  /** Whether a request is open here, or its outcome is known. */
  knows(id: string): boolean {
    return this.#settled.has(id) || this.requests().some((request) => request.id === id);
  }

  /** Waits until the stream has brought a request, or its outcome; rejects after some milliseconds. */
  async arrival(id: string, timeout: number): Promise<void> {
    if (this.knows(id)) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let look: (() => void) | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        look = () => this.knows(id) && resolve();
        this.#arrivals.add(look);
        timer = setTimeout(() => reject(nobodyAsked(id)), timeout);
      });
    } finally {
      clearTimeout(timer);
      if (look) this.#arrivals.delete(look);
    }
  }

  /** The requests that wait for an answer here. */
  requests(): Request[] {
    return [...this.#open.values()].map(({ request }) => request);
  }

  // Internals

  #begin(method: AskingMethod, rpcId: JsonRpcId, params: Readonly<Record<string, unknown>>): Asked {
    const over = new AbortController();
    const request = new KINDS[method](idOf(rpcId), params, over.signal, this.log);
    const asked: Asked = {
      rpcId,
      request,
      over,
      give: undefined,
      by: undefined,
      replied: undefined,
      refusal: undefined,
    };
    this.#open.set(rpcId, asked);
    for (const look of this.#arrivals) look();
    return asked;
  }

  async #decide(asked: Asked): Promise<void> {
    const { request } = asked;
    const decide = this.#decider(request);
    if (decide === undefined) {
      this.#unhandled(asked);
      return;
    }
    try {
      const answer = await decide();
      // Undefined: deferred, until it is answered by its id or withdrawn.
      if (answer) this.#give(asked, answer, "handler");
    } catch (error) {
      if (asked.over.signal.aborted) return;
      this.log.error(`sandbox-agent: a handler failed, rejecting ${request.id}`, error);
      this.#give(asked, rejection(request), "rejection");
    }
  }

  #decider(request: Request): (() => MaybePromise<Answer | undefined | void>) | undefined {
    const own = this.ofSession.get(request.sessionId ?? "") ?? {};
    if (request instanceof PermissionRequest) {
      const handler = own.onPermission ?? this.handlers.onPermission;
      return handler && (() => handler(request));
    }
    if (request instanceof QuestionRequest) {
      const handler = own.onQuestion ?? this.handlers.onQuestion;
      return handler && (() => handler(request));
    }
    const handler = own.onElicitation ?? this.handlers.onElicitation;
    return handler && (() => handler(request));
  }

  #unhandled(asked: Asked): void {
    const session = asked.request.sessionId ?? "";
    const kind = asked.request.constructor.name;
    if (!this.#warned.has(session)) {
      this.#warned.add(session);
      const what = this.#alone ? "rejected" : "left open for other clients";
      this.log.warn(`sandbox-agent: there is no handler for a ${kind}, so it is ${what}`, { sessionId: session });
    }
    if (this.#alone) this.#give(asked, rejection(asked.request), "rejection");
  }

  /** An answer did not count, and the request is open still. */
  #askAgain(asked: Asked): void {
    if (asked.by !== "handler") {
      if (asked.by === "rejection")
        this.log.error("sandbox-agent: a rejection was refused; it is left open", asked.refusal);
      return;
    }
    if (asked.refusal instanceof ServerProblem && asked.refusal.slug === "wrong-answer") {
      this.log.error(`sandbox-agent: an answer was refused, rejecting ${asked.request.id}`, asked.refusal);
      this.#give(asked, rejection(asked.request), "rejection");
    } else {
      this.log.error(`sandbox-agent: an answer was refused, ${asked.request.id} is left open`, asked.refusal);
    }
  }

  #give(asked: Asked, answer: Answer, by: NonNullable<Asked["by"]>): void {
    const { give } = asked;
    if (give === undefined || asked.over.signal.aborted) return;
    asked.give = undefined;
    asked.by = by;
    give(answer);
  }

  #settle(asked: Asked, outcome: unknown): void {
    this.#open.delete(asked.rpcId);
    this.#remember(asked.request.id, outcome);
    asked.over.abort(new ClientError("this needs no answer any more"));
  }

  #remember(id: string, outcome: unknown): void {
    // Without an outcome it may be open still, and be asked again.
    if (outcome === undefined) return;
    this.#settled.set(id, outcome);
    for (const look of this.#arrivals) look();
    if (this.#settled.size > REMEMBERED) this.#settled.delete(this.#settled.keys().next().value as string);
  }
}

/** The answer that declines a request. */
function rejection(request: Request): Answer {
  return request instanceof ElicitationRequest ? request.decline() : request.reject();
}

function alreadyAnswered(id: string, outcome: unknown): AlreadyAnswered {
  const detail = `the request ${id} is settled, and its outcome is ${String(outcome)}; there is nothing left to answer`;
  return new AlreadyAnswered(detail, { outcome });
}

/** The failure of an answer that comes after another one, as the session's log has that. */
export function decidedBefore(id: string, decision: Decision): AlreadyAnswered {
  const { outcome, by } = decision;
  const name = [by["user"], by["name"]].find((each) => typeof each === "string" && each !== "");
  const decider = name === undefined ? by.kind : `${by.kind} ${String(name)}`;
  return new AlreadyAnswered(`the request ${id} is settled: ${outcome}, by ${decider}`, { outcome }, decision);
}

/** The failure of an answer to a request that is not open. */
export function nobodyAsked(id: string): ServerProblem {
  const detail =
    `no open request of this kind has the id ${id}: it was withdrawn, its agent's process has ended, ` +
    "or it belongs to another session";
  return new ServerProblem("nobody-asked", "Nobody Asked", 404, detail);
}

/** Rejects when the signal aborts. */
function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const abort = (): void => reject(signal.reason as Error);
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
  });
}
