/**
 * A session at one moment, as an app draws it.
 *
 * `SessionReducer` makes it from the log. It never changes: a later moment is another view, which shares with this one
 * what is the same. So `===` says whether a turn or an item has to be drawn again. A member without a value is not in
 * its JSON.
 */

import type {
  AvailableCommand,
  ContentBlock,
  PermissionOption,
  PlanEntry,
  SessionConfigOption,
  SessionModeState,
  ToolCallContent,
  ToolCallLocation,
  ToolCallStatus,
  ToolCallUpdate,
  ToolKind,
} from "@agentclientprotocol/sdk";

import type { Question } from "../requests.js";
import type { Attachment } from "../turn.js";
import type { Decision, SessionEnded } from "../updates.js";
import { type EventIds } from "./event-ids.js";

/** The state of a session: `waiting` means that a request to a person is open. */
export type SessionStatus = "running" | "waiting" | "idle" | "ended";

/** A session at one moment. */
export interface SessionView {
  /** Position of the last event that is in it; 0 before the first one. */
  readonly position: number;
  /** When that event was kept: UTC, ISO 8601; empty before the first one. */
  readonly time: string;
  /** Whether it runs, waits for a person, is idle, or has ended. */
  readonly status: SessionStatus;
  /** Its agent's id, as the request that made the session has it. */
  readonly agent: string | undefined;
  /** Its directory, on the server's machine. */
  readonly cwd: string | undefined;
  /** Its title: the agent's, or the one it was made with. */
  readonly title: string | undefined;
  /** All prompts with their turns, oldest first. */
  readonly turns: readonly TurnView[];
  /** Prompts that wait for the turns before them. */
  readonly queue: readonly QueuedPrompt[];
  /** The newest plan. */
  readonly plan: readonly PlanEntry[] | undefined;
  /** Requests that wait for a person, oldest first. The same objects are in their turns. */
  readonly pending: readonly RequestItem[];
  /** Tokens and cost of the whole session. */
  readonly usage: SessionUsage;
  /** The modes that its agent offers, and the current one. */
  readonly modes: SessionModeState | undefined;
  /** The agent's options, with their current values. */
  readonly configOptions: readonly SessionConfigOption[];
  /** The agent's slash commands. */
  readonly commands: readonly AvailableCommand[];
  /** Facts that clients keep with the session. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Commands in terminals of the server or of the agent, by the ids of the terminals. */
  readonly terminals: Readonly<Record<string, TerminalView>>;
  /** Files that the server wrote for the agent (`fs/write_text_file`). */
  readonly writes: readonly FileWrite[];
  /** How it ended; absent when it has not ended, or was resumed. */
  readonly ended: SessionEnd | undefined;
  /** Requests whose answer is not in the log yet. The reducer needs it to continue. */
  readonly calls: readonly OpenCall[];
  /** The newest text of each file that the server read or wrote for the agent. The reducer needs it to continue. */
  readonly texts: Readonly<Record<string, string>>;
}

/** A prompt with its turn. Events outside of turns are in turns of their own, whose state is `outside`. */
export interface TurnView {
  /** Unique in its session, and the same at every moment. */
  readonly key: string;
  /** The server's id of the turn; absent outside of turns. */
  readonly turnId: string | undefined;
  /** The id that the client gave to its prompt. */
  readonly promptId: string | undefined;
  /** Whether it runs, has ended in one of three ways, or is no turn. */
  readonly state: "running" | "ended" | "cancelled" | "failed" | "outside";
  /** When it started: UTC, ISO 8601. When its start is not known, when its first known event was kept. */
  readonly startedAt: string;
  /** Its prompt was withdrawn before its turn. */
  readonly neverBegan: boolean;
  /** When it ended: UTC, ISO 8601. */
  readonly endedAt: string | undefined;
  /** Why the agent stopped, such as `end_turn`. */
  readonly stopReason: string | undefined;
  /** The error of a turn that failed. */
  readonly error: { readonly code: number; readonly message: string } | undefined;
  /** Tokens of this turn, if its agent counts them. */
  readonly tokens: TokenCounts | undefined;
  /** Events of the turn itself: its prompt, start, end and result. */
  readonly events: EventIds;
  /** Everything in it, oldest first. */
  readonly items: readonly ViewItem[];
}

/** The members of every item. */
export interface ItemFacts {
  /** Unique in its session, and the same at every moment. */
  readonly key: string;
  /** The events that it came from. */
  readonly events: EventIds;
  /** When it began: UTC, ISO 8601. */
  readonly at: string;
}

/** Something in a turn; `type` says what it is. */
export type ViewItem =
  | UserItem
  | TextItem
  | ThoughtItem
  | ContentItem
  | ToolCallItem
  | PlanItem
  | RequestItem
  | FailureItem
  | NoticeItem
  | GapItem;

/** A prompt, of a person or of a program. */
export interface UserItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "user";
  /** The prompt's content. */
  readonly blocks: readonly ContentBlock[];
  /** Files that the prompt names. */
  readonly attachments: readonly Attachment[];
}

/** A piece of the agent's message, as Markdown, as far as it has arrived. */
export interface TextItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "text";
  /** Its text. */
  readonly text: string;
  /** The agent's id of the message, if it gives one. */
  readonly messageId: string | undefined;
}

/** A piece of the agent's thinking. */
export interface ThoughtItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "thought";
  /** Its text. */
  readonly text: string;
  /** The agent's id of the message, if it gives one. */
  readonly messageId: string | undefined;
  /** When its newest piece was kept: UTC, ISO 8601. */
  readonly until: string;
}

/** Content of the agent's message that is no text: an image, a link, a resource. */
export interface ContentItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "content";
  /** The content. */
  readonly block: ContentBlock;
}

/** An action of the agent. */
export interface ToolCallItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "tool";
  /** The agent's id of it. */
  readonly toolCallId: string;
  /** Its title, for people. */
  readonly title: string;
  /** The kind of action; choose an icon by it. */
  readonly kind: ToolKind;
  /** Its progress. In a turn that has ended, `pending` and `in_progress` mean that it was stopped. */
  readonly status: ToolCallStatus;
  /** Texts, pictures, diffs and terminals to show. */
  readonly content: readonly ToolCallContent[];
  /** Files that it works on. */
  readonly locations: readonly ToolCallLocation[];
  /** The agent's own arguments. */
  readonly rawInput: unknown;
  /** The agent's own result. */
  readonly rawOutput: unknown;
  /** The agent's `_meta`. */
  readonly meta: Readonly<Record<string, unknown>> | undefined;
  /** When it was completed or failed, or when its turn ended before that: UTC, ISO 8601. */
  readonly endedAt: string | undefined;
  /** Key of the permission request for it. */
  readonly requestKey: string | undefined;
}

/** The plan after a change. Changes in a row are one item. */
export interface PlanItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "plan";
  /** The steps of the plan. */
  readonly entries: readonly PlanEntry[];
}

/** A request of the agent to a person; `kind` says which. */
export type RequestItem = PermissionItem | QuestionItem | ElicitationItem;

/** The members of every request. */
export interface RequestItemFacts extends ItemFacts {
  /** The type of this item. */
  readonly type: "request";
  /** The id to answer it by (`client.replyPermission(id, …)`), while it can be answered. */
  readonly requestId: string | undefined;
  /** The agent's own id of it, under which the log has it. Another request may have the same. */
  readonly agentRequestId: string | number;
  /** Key of its turn. */
  readonly turnKey: string;
  /** Its outcome; absent while it is open. */
  readonly decision: RequestDecision | undefined;
}

/** An agent asks for permission. */
export interface PermissionItem extends RequestItemFacts {
  /** The kind of the request. */
  readonly kind: "permission";
  /** The action that it asks for, as the request has it. */
  readonly toolCall: ToolCallUpdate;
  /** The answers to choose from. */
  readonly options: readonly PermissionOption[];
}

/** An agent asks questions. */
export interface QuestionItem extends RequestItemFacts {
  /** The kind of the request. */
  readonly kind: "question";
  /** The agent's id of the question. */
  readonly questionId: string | undefined;
  /** All of it in a sentence. */
  readonly prompt: string;
  /** Each question, with its choices. */
  readonly questions: readonly Question[];
  /** The tool call that asks, if the agent names it. */
  readonly toolCallId: string | undefined;
}

/** An agent wants a form filled in, or an address visited. */
export interface ElicitationItem extends RequestItemFacts {
  /** The kind of the request. */
  readonly kind: "elicitation";
  /** Its purpose. */
  readonly message: string;
  /** `form` or `url`. */
  readonly mode: string;
  /** JSON schema of the form: a flat object. */
  readonly schema: Readonly<Record<string, unknown>> | undefined;
  /** The address to visit. */
  readonly url: string | undefined;
}

/** The outcome of a request. */
export interface RequestDecision {
  /** The outcome; `unknown` if it can no longer be answered and the log does not say why. */
  readonly outcome: "answered" | "rejected" | "cancelled" | "unknown" | (string & {});
  /** When it was decided: UTC, ISO 8601. */
  readonly at: string;
  /** Of a permission: the chosen option. */
  readonly optionId?: string;
  /** Of a permission: the kind of the chosen option, such as `allow_once`. */
  readonly optionKind?: string;
  /** Of a question: the ids or texts, a list for each question. */
  readonly answers?: readonly (readonly string[])[];
  /** Of a form: the values of its fields. */
  readonly content?: Readonly<Record<string, unknown>>;
  /** Why, in the words of a person or of the server. */
  readonly reason?: string;
  /** The decider; absent between an answer and the server's decision about it. */
  readonly by?: Decision["by"];
}

/** A turn failed, or the agent's process died. */
export interface FailureItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "failure";
  /** The error, for people. */
  readonly message: string;
  /** The code of the error. */
  readonly code: number | undefined;
  /** The exit code of the agent's process. */
  readonly exitCode: number | undefined;
  /** The signal that ended the agent's process. */
  readonly signal: string | undefined;
  /** The first and the last lines that the agent's process wrote to stderr. */
  readonly stderr: SessionEnded["stderr"] | undefined;
  /** Further facts of the error. */
  readonly data: unknown;
}

/** A fact worth a line. */
export interface NoticeItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "notice";
  /** The subject; `unknown` is an update of a kind that the SDK does not know. */
  readonly about: "mode" | "option" | "ended" | "resumed" | "decision" | "unparsed" | "agent" | "unknown";
  /** The fact, for people. */
  readonly text: string;
}

/** Events that are missing here: they are no longer kept, or the view began after them. */
export interface GapItem extends ItemFacts {
  /** The type of this item. */
  readonly type: "gap";
  /** The last event before it. */
  readonly after: number;
  /** The first event after it. */
  readonly resumesAt: number;
}

/** A prompt that waits for the turns before it. */
export interface QueuedPrompt {
  /** The key that its turn will have. */
  readonly key: string;
  /** Position of the prompt. */
  readonly event: number;
  /** When it was sent: UTC, ISO 8601. */
  readonly at: string;
  /** The id that the client gave to its prompt. */
  readonly promptId: string | undefined;
  /** The prompt's content. */
  readonly blocks: readonly ContentBlock[];
  /** Files that the prompt names. */
  readonly attachments: readonly Attachment[];
}

/** Numbers of tokens. */
export interface TokenCounts {
  /** All of them. */
  readonly total: number;
  /** Tokens that the model read. */
  readonly input: number;
  /** Tokens that the model wrote. */
  readonly output: number;
  /** Tokens that it thought with. */
  readonly thought: number | undefined;
  /** Input tokens that came from a cache. */
  readonly cacheRead: number | undefined;
  /** Input tokens that were put into a cache. */
  readonly cacheWrite: number | undefined;
}

/** Tokens and cost of a session. Each is absent when its agent does not report it. */
export interface SessionUsage {
  /** Tokens in the context now, and how many fit. */
  readonly context: { readonly used: number; readonly size: number } | undefined;
  /** The tokens of all turns. */
  readonly tokens: TokenCounts | undefined;
  /** The cost of the session. */
  readonly cost: { readonly amount: number; readonly currency: string } | undefined;
}

/** A command in a terminal of the server, or in one of the agent. */
export interface TerminalView {
  /** Its id. */
  readonly terminalId: string;
  /** The command. */
  readonly command: string;
  /** The command's arguments. */
  readonly args: readonly string[];
  /** The directory that it runs in. */
  readonly cwd: string | undefined;
  /** Its output, as far as the agent has read it; of an agent's own terminal, the end of it. */
  readonly output: string;
  /** The beginning of the output is missing. */
  readonly truncated: boolean;
  /** How it ended; absent while it runs. */
  readonly exit: { readonly exitCode: number | undefined; readonly signal: string | undefined } | undefined;
  /** The agent has released it. */
  readonly released: boolean;
  /** The events that it came from. */
  readonly events: EventIds;
}

/** A file that the server wrote for the agent. */
export interface FileWrite {
  /** Its path. */
  readonly path: string;
  /** Its text before; absent when the log does not have it. */
  readonly oldText: string | undefined;
  /** Its text after. */
  readonly newText: string;
  /** Key of the turn in which it was written. */
  readonly turnKey: string;
  /** Whether it was written; absent until the server has answered. */
  readonly done: boolean | undefined;
  /** When the agent asked for it: UTC, ISO 8601. */
  readonly at: string;
  /** The events that it came from. */
  readonly events: EventIds;
}

/** How a session ended. */
export interface SessionEnd {
  /** Why it ended. */
  readonly reason: "error" | "closed" | "terminated" | (string & {});
  /** Who ended it; `daemon` is the server. */
  readonly terminatedBy: "agent" | "daemon" | "client" | (string & {});
  /** The same for people. */
  readonly message: string | undefined;
  /** The exit code of its process. */
  readonly exitCode: number | undefined;
  /** The signal that ended its process. */
  readonly signal: string | undefined;
  /** The first and the last lines that its process wrote to stderr. */
  readonly stderr: SessionEnded["stderr"] | undefined;
  /** When it ended: UTC, ISO 8601. */
  readonly at: string;
}

/** A request whose answer is not in the log yet. */
export interface OpenCall {
  /** Position of the request. */
  readonly event: number;
  /** Its JSON-RPC id. */
  readonly id: string | number;
  /** Whether the agent sent it. */
  readonly fromAgent: boolean;
  /** Its method. */
  readonly method: string;
  /** Its params. */
  readonly params: Readonly<Record<string, unknown>>;
}

/** A session of which nothing is known. */
export const EMPTY_VIEW: SessionView = {
  position: 0,
  time: "",
  status: "idle",
  agent: undefined,
  cwd: undefined,
  title: undefined,
  turns: [],
  queue: [],
  plan: undefined,
  pending: [],
  usage: { context: undefined, tokens: undefined, cost: undefined },
  modes: undefined,
  configOptions: [],
  commands: [],
  metadata: {},
  terminals: {},
  writes: [],
  ended: undefined,
  calls: [],
  texts: {},
};
