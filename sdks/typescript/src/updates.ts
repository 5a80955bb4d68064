/**
 * The updates of a session: ACP's updates as upstream defines them, and the server's own.
 *
 * Every item has a `sessionUpdate` that says what it is.
 */

import type { ContentBlock, PromptResponse, SessionUpdate } from "@agentclientprotocol/sdk";

import type { AgentRequest } from "./requests.js";
import type { Heard } from "./stream.js";
import type { Attachment } from "./turn.js";

/** A turn has started, of this client or of another one. */
export interface TurnStarted {
  /** The type of this update. */
  readonly sessionUpdate: "turn_started";
  /** The server's id of the turn. */
  readonly turnId: string;
  /** The client's id of the prompt. */
  readonly promptId?: string;
}

/** A turn has ended: with a stop reason, or with an error of its agent. */
export interface TurnEnded extends Partial<PromptResponse> {
  /** The type of this update. */
  readonly sessionUpdate: "turn_ended";
  /** Absent when the turn never came about. */
  readonly turnId?: string;
  /** The client's id of the prompt. */
  readonly promptId?: string;
  /** The error of a turn that has no stop reason. */
  readonly error?: { readonly code: number; readonly message: string };
}

/** The end of a turn of this client: the agent's answer. */
export type TurnResult = TurnEnded & PromptResponse;

/** The decision about a request of an agent: the outcome, the decider and the reason. */
export interface Decision {
  /** The type of this update. */
  readonly sessionUpdate: "decision";
  /** The session's id. */
  readonly sessionId: string;
  /** Of the request: `request.id`, as its handler got it. */
  readonly requestId: string;
  /** The agent's own id of it, under which the log has the request and its answer. */
  readonly agentRequestId: string | number;
  /** The kind of the request. */
  readonly kind: "permission" | "question" | "elicitation";
  /** The outcome. */
  readonly outcome: "answered" | "rejected" | "cancelled" | (string & {});
  /** The action that needed permission. */
  readonly toolCallId?: string;
  /** The option that was chosen. */
  readonly optionId?: string;
  /** Its kind, such as `allow_once`. */
  readonly optionKind?: string;
  /** Of a question or a form: its id. */
  readonly questionId?: string;
  /** Of a question: the chosen or written answers, a list for each question. */
  readonly answers?: readonly (readonly string[])[];
  /** Of a form: the values of its fields. */
  readonly content?: Readonly<Record<string, unknown>>;
  /** `kind` is `rule`, `client`, `timeout`, `limit`, `cancel` or `agent`. The other members identify it. */
  readonly by: { readonly kind: string; readonly [fact: string]: unknown };
  /** The reason, in the words of a person or of the server. */
  readonly reason?: string;
}

/** All of the session's metadata, after a change. */
export interface MetadataUpdated {
  /** The type of this update. */
  readonly sessionUpdate: "metadata_update";
  /** All of it. */
  readonly metadata: Readonly<Record<string, unknown>>;
}

/** The session has ended; a prompt may still resume it, if its agent can do that. */
export interface SessionEnded {
  /** The type of this update. */
  readonly sessionUpdate: "session_ended";
  /** Why it ended. */
  readonly reason: "error" | "closed" | "terminated" | (string & {});
  /** Who ended it; `daemon` is the server. */
  readonly terminatedBy: "agent" | "daemon" | "client" | (string & {});
  /** The same for people. */
  readonly message?: string;
  /** The exit code of its process. */
  readonly exitCode?: number;
  /** The signal that ended its process. */
  readonly signal?: string;
  /** The first and the last lines that its process wrote to stderr. */
  readonly stderr?: {
    readonly head: string[];
    readonly tail: string[];
    readonly truncated: boolean;
    readonly totalLines: number;
  };
}

/** The events between two positions were deleted. */
export interface Gap {
  /** The type of this update. */
  readonly sessionUpdate: "gap";
  /** The last event before it. */
  readonly after: number;
  /** The first event after it. */
  readonly resumesAt: number;
}

/** A client sent a prompt. Only `history` and `follow` have it; `updates` has prompts as `user_message_chunk`. */
export interface PromptSent {
  /** The type of this update. */
  readonly sessionUpdate: "prompt";
  /** The server's id of its turn. */
  readonly turnId: string;
  /** The client's id of the prompt. */
  readonly promptId?: string;
  /** Its content. */
  readonly prompt: readonly ContentBlock[];
  /** Files that it names. */
  readonly attachments: readonly Attachment[];
}

/** An agent sent a request. Only `history` and `follow` have it. */
export interface RequestOpened {
  /** The type of this update. */
  readonly sessionUpdate: "request";
  /** The request. Its `id` is empty when it can no longer be answered. */
  readonly request: AgentRequest;
}

/** The session began: it was made, loaded, resumed or forked. Only `history` and `follow` have it. */
export interface SessionOpened {
  /** The type of this update. */
  readonly sessionUpdate: "session_opened";
  /** Its agent's id, as `session/new` names it. */
  readonly agent?: string;
  /** Its directory, on the server's machine. */
  readonly cwd?: string;
  /** The title that it was made with. */
  readonly title?: string;
}

/**
 * Everything that `session.updates()`, `session.history()` and `session.follow()` give.
 *
 * An agent may send an update that ACP does not know. It comes as it was sent, so a `switch` needs a `default`.
 */
export type SessionItem =
  | SessionUpdate
  | TurnStarted
  | TurnEnded
  | Decision
  | MetadataUpdated
  | SessionEnded
  | PromptSent
  | RequestOpened
  | SessionOpened
  | Gap;

/** An item of a session's past or present, with its position in the log. */
export interface SessionEvent {
  /** Its position in the log; of a gap, the last position in it. Reading after it goes on with the next event. */
  readonly position: number;
  /** When the log got it: UTC, ISO 8601 with milliseconds; absent for a gap. */
  readonly at?: string;
  /** The update. */
  readonly item: SessionItem;
}

/** Everything that a turn yields; the last item is the one with `turn_ended`. */
export type TurnItem = SessionUpdate | Decision | Gap | TurnResult;

/** ACP's updates. */
export const UPDATE = "session/update";
/** A turn starts or ends. */
export const TURN = "_sandboxagent/session/turn";
/** A request of an agent is settled. */
export const DECISION = "_sandboxagent/session/decision";
/** A session ends. */
export const ENDED = "_sandboxagent/session/ended";
/** Reasons of a final end. A session that has ended for another reason may be resumed. */
export const FINAL: ReadonlySet<unknown> = new Set(["terminated", "deleted"]);
/** Events were deleted. */
export const GAP = "_sandboxagent/stream/gap";

/** A session's notification as an item; undefined for a notification about anything else. */
export function itemOf({ method, params }: Pick<Heard, "method" | "params">): SessionItem | undefined {
  const { sessionId: _, ...facts } = params;
  switch (method) {
    case UPDATE:
      return params["update"] as SessionUpdate;
    case TURN: {
      const { state, ...rest } = facts;
      const sessionUpdate = state === "started" ? "turn_started" : "turn_ended";
      return { ...rest, sessionUpdate } as TurnStarted | TurnEnded;
    }
    case DECISION:
      return { ...params, sessionUpdate: "decision" } as unknown as Decision;
    case "_sandboxagent/session/metadata_update":
      return { ...facts, sessionUpdate: "metadata_update" } as MetadataUpdated;
    case ENDED:
      return { ...facts, sessionUpdate: "session_ended" } as SessionEnded;
    case GAP:
      return { ...facts, sessionUpdate: "gap" } as Gap;
    default:
      return undefined;
  }
}

/** The text of a piece of the agent's message; empty for everything else. */
export function textOf(item: SessionItem): string {
  if (item.sessionUpdate !== "agent_message_chunk") return "";
  const { content } = item;
  return content.type === "text" ? content.text : "";
}
