/** Requests of agents to people: permissions, questions and forms, and the answers to each. */

import type {
  CreateElicitationResponse,
  ElicitationContentValue,
  ElicitationSchema,
  PermissionOption,
  RequestPermissionResponse,
  ToolCallUpdate,
} from "@agentclientprotocol/sdk";

import type { Logger } from "./log.js";
import { questionsOf } from "./view/requests.js";

type Params = Readonly<Record<string, unknown>>;

/** An agent asks whether it may do something. */
export class PermissionRequest {
  /** The kind of request. */
  readonly kind: "permission" = "permission";
  /** Its id, to answer it later: `client.replyPermission(id, …)`. No other request has it. In the past, empty. */
  readonly id: string;
  /** The session's id. */
  readonly sessionId: string;
  /** The action that it asks for. */
  readonly toolCall: ToolCallUpdate;
  /** The options to choose from. */
  readonly options: readonly PermissionOption[];
  /** When it was asked: UTC, ISO 8601. Absent when a handler gets it. */
  readonly askedAt: string | undefined;
  /** In a handler: aborts when no answer is needed any more, as another client gave one or the agent withdrew it. */
  readonly signal: AbortSignal;
  readonly #log: Logger;

  /** @internal */
  constructor(id: string, params: Params, signal: AbortSignal, log: Logger, askedAt?: string) {
    this.id = id;
    this.askedAt = askedAt;
    this.sessionId = String(params["sessionId"]);
    this.toolCall = (params["toolCall"] ?? { toolCallId: "" }) as ToolCallUpdate;
    this.options = Array.isArray(params["options"]) ? (params["options"] as PermissionOption[]) : [];
    this.signal = signal;
    this.#log = log;
  }

  /** Allow it this once. An agent that offers no such option, or several, is rejected. */
  allow(): RequestPermissionResponse {
    return this.#only("allow_once");
  }

  /** Allow it, and all actions that the agent considers the same, from now on. */
  allowAlways(): RequestPermissionResponse {
    return this.#only("allow_always");
  }

  /** Do not allow it; the agent is given the reason. */
  reject(why: Rejection = {}): RequestPermissionResponse {
    const option = this.options.find(({ kind }) => kind === "reject_once");
    return { ...(option ? this.select(option.optionId) : this.cancel()), ...because(why) };
  }

  /** Choose one of the agent's own options. */
  select(optionId: string): RequestPermissionResponse {
    return { outcome: { outcome: "selected", optionId } };
  }

  /** Choose nothing. */
  cancel(): RequestPermissionResponse {
    return { outcome: { outcome: "cancelled" } };
  }

  #only(wanted: PermissionOption["kind"]): RequestPermissionResponse {
    const [option, ...others] = this.options.filter(({ kind }) => kind === wanted);
    if (option && others.length === 0) return this.select(option.optionId);
    this.#log.warn(`sandbox-agent: rejected, because there is not one ${wanted} option`, { sessionId: this.sessionId });
    return this.reject();
  }
}

/** How to reject something. */
export interface Rejection {
  /** Why, in a person's own words. The agent and every attached client get it. */
  readonly reason?: string;
}

/** Where a request was asked. */
export interface RequestPlace {
  /** Its session. Needed when the request was stored and this client has not attached to its session. */
  readonly sessionId?: string;
}

function because({ reason }: Rejection): { _meta?: Record<string, unknown> } {
  return reason === undefined ? {} : { _meta: { "sandboxagent.dev": { reason } } };
}

/** One of the answers that a question offers. */
export interface Choice {
  /** Its id, which you use to choose it. */
  readonly id: string;
  /** For people. */
  readonly label: string;
  /** Its description. */
  readonly description?: string;
}

/** One question; with no options it is answered by a text. */
export interface Question {
  /** Its subject in a word. */
  readonly header?: string;
  /** The question. */
  readonly question: string;
  /** The choices; free text is an answer, too. */
  readonly options: readonly Choice[];
  /** Whether several may be chosen. */
  readonly multiSelect: boolean;
}

/** The answer to questions: a list of ids or texts for each, or a rejection. */
export type QuestionAnswer =
  | { readonly status: "answered"; readonly answers: readonly (readonly string[])[] }
  | { readonly status: "rejected"; readonly _meta?: Readonly<Record<string, unknown>> };

/** An agent asks one or several questions. */
export class QuestionRequest {
  /** The kind of request. */
  readonly kind: "question" = "question";
  /** Its id, to answer it later: `client.replyQuestion(id, …)`. No other request has it. In the past, empty. */
  readonly id: string;
  /** The agent's id of it, which a `Decision` has, too. Another agent may use the same id. */
  readonly questionId: string | undefined;
  /** The session's id. */
  readonly sessionId: string;
  /** All of it in a sentence. */
  readonly prompt: string;
  /** Each question; an answer has something for each. */
  readonly questions: readonly Question[];
  /** When it was asked: UTC, ISO 8601. Absent when a handler gets it. */
  readonly askedAt: string | undefined;
  /** In a handler: aborts when no answer is needed any more, as another client gave one or the agent withdrew it. */
  readonly signal: AbortSignal;

  /** @internal */
  constructor(id: string, params: Params, signal: AbortSignal, _log?: Logger, askedAt?: string) {
    this.id = id;
    this.askedAt = askedAt;
    this.questionId = typeof params["questionId"] === "string" ? params["questionId"] : undefined;
    this.sessionId = String(params["sessionId"]);
    this.prompt = String(params["prompt"] ?? "");
    this.questions = questionsOf(params);
    this.signal = signal;
  }

  /** Answer each question in turn: an option's id, a text of your own, or several where several may be chosen. */
  answer(...answers: readonly (string | readonly string[])[]): QuestionAnswer {
    return { status: "answered", answers: answers.map((each) => (typeof each === "string" ? [each] : [...each])) };
  }

  /** Decline to answer; the agent is given the reason. */
  reject(why: Rejection = {}): QuestionAnswer {
    return { status: "rejected", ...because(why) };
  }
}

/** An agent wants a form filled in (`mode` is `form`), or an address visited (`url`). */
export class ElicitationRequest {
  /** The kind of request. */
  readonly kind: "elicitation" = "elicitation";
  /** Its id, to answer it later: `client.replyElicitation(id, …)`. No other request has it. In the past, empty. */
  readonly id: string;
  /** Absent when it belongs to no session, such as a login form. */
  readonly sessionId: string | undefined;
  /** Its purpose. */
  readonly message: string;
  /** Whether a form is to be filled in, or an address to be visited. */
  readonly mode: "form" | "url" | (string & {});
  /** The schema of the form. */
  readonly schema: ElicitationSchema | undefined;
  /** The address to visit. */
  readonly url: string | undefined;
  /** When it was asked: UTC, ISO 8601. Absent when a handler gets it. */
  readonly askedAt: string | undefined;
  /** In a handler: aborts when no answer is needed any more, as another client gave one or the agent withdrew it. */
  readonly signal: AbortSignal;

  /** @internal */
  constructor(id: string, params: Params, signal: AbortSignal, _log?: Logger, askedAt?: string) {
    this.id = id;
    this.askedAt = askedAt;
    this.sessionId = params["sessionId"] as string | undefined;
    this.message = String(params["message"] ?? "");
    this.mode = String(params["mode"] ?? "form");
    this.schema = params["requestedSchema"] as ElicitationSchema | undefined;
    this.url = params["url"] as string | undefined;
    this.signal = signal;
  }

  /** Hand in the form. */
  accept(content?: Record<string, ElicitationContentValue>): CreateElicitationResponse {
    return content ? { action: "accept", content } : { action: "accept" };
  }

  /** Say no; the agent is given the reason. */
  decline(why: Rejection = {}): CreateElicitationResponse {
    return { action: "decline", ...because(why) };
  }

  /** Say neither yes nor no. */
  cancel(): CreateElicitationResponse {
    return { action: "cancel" };
  }
}

/** A request of an agent to a person. */
export type AgentRequest = PermissionRequest | QuestionRequest | ElicitationRequest;
