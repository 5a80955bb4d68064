/**
 * What happens in a session: ACP's updates as upstream has them, and what the server adds.
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
  /** The server's name for the turn. */
  readonly turnId: string;
  /** What its client called the prompt. */
  readonly promptId?: string;
}

/** A turn has ended: with a stop reason, or with an error of its agent. */
export interface TurnEnded extends Partial<PromptResponse> {
  /** The type of this update. */
  readonly sessionUpdate: "turn_ended";
  /** Absent when the turn never came about. */
  readonly turnId?: string;
  /** What its client called the prompt. */
  readonly promptId?: string;
  /** What went wrong, in a turn that has no stop reason. */
  readonly error?: { readonly code: number; readonly message: string };
}

/** How a turn of this client's ended: what its agent answered. */
export type TurnResult = TurnEnded & PromptResponse;

/** How a request of an agent was decided, who or what decided it, and why. */
export interface Decision {
  /** The type of this update. */
  readonly sessionUpdate: "decision";
  /** The session's id. */
  readonly sessionId: string;
  /** Of the request: `request.id`, as its handler got it. */
  readonly requestId: string;
  /** The agent's own id of it, under which the log has the request and its answer. */
  readonly agentRequestId: string | number;
  /** What was asked. */
  readonly kind: "permission" | "question" | "elicitation";
  /** What became of it. */
  readonly outcome: "answered" | "rejected" | "cancelled" | (string & {});
  /** For what permission was asked. */
  readonly toolCallId?: string;
  /** The option that was chosen. */
  readonly optionId?: string;
  /** Its kind, such as `allow_once`. */
  readonly optionKind?: string;
  /** Of a question or a form: its id. */
  readonly questionId?: string;
  /** Of a question: what was chosen or written, a list for each question. */
  readonly answers?: readonly (readonly string[])[];
  /** Of a form: what was filled in. */
  readonly content?: Readonly<Record<string, unknown>>;
  /** `kind` is `rule`, `client`, `timeout`, `limit`, `cancel` or `agent`; the rest says which. */
  readonly by: { readonly kind: string; readonly [fact: string]: unknown };
  /** Why: a person's own words, or the server's. */
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
  /** With which code its process exited. */
  readonly exitCode?: number;
  /** By which signal its process was ended. */
  readonly signal?: string;
  /** The first and the last lines that its process wrote to stderr. */
  readonly stderr?: {
    readonly head: string[];
    readonly tail: string[];
    readonly truncated: boolean;
    readonly totalLines: number;
  };
}

/** What came after one event and before another is no longer kept. */
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
  /** The server's name for its turn. */
  readonly turnId: string;
  /** What its client called the prompt. */
  readonly promptId?: string;
  /** Its content. */
  readonly prompt: readonly ContentBlock[];
  /** Files that it names. */
  readonly attachments: readonly Attachment[];
}

/** An agent asked for something. Only `history` and `follow` have it. */
export interface RequestOpened {
  /** The type of this update. */
  readonly sessionUpdate: "request";
  /** What it asked; its `id` is empty when it can no longer be answered. */
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
  /** When it was kept: UTC, ISO 8601 with milliseconds; absent for a gap. */
  readonly at?: string;
  /** What happened. */
  readonly item: SessionItem;
}

/** Everything that a turn yields; the last item is the one with `turn_ended`. */
export type TurnItem = SessionUpdate | Decision | Gap | TurnResult;

/** ACP's updates. */
export const UPDATE = "session/update";
/** A turn starts or ends. */
export const TURN = "_sandboxagent/session/turn";
/** What an agent asked is settled. */
export const DECISION = "_sandboxagent/session/decision";
/** A session ends. */
export const ENDED = "_sandboxagent/session/ended";
/** Reasons of an end for good; a session that has ended otherwise may be brought back. */
export const FINAL: ReadonlySet<unknown> = new Set(["terminated", "deleted"]);
/** Something is no longer kept. */
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
