/**
 * What a session looks like at one moment: everything that any room of the Inspector draws.
 *
 * `fold` makes it from the log. It never changes: a later moment is another view, which shares with this one whatever
 * is the same. So `===` says whether a turn or an item has to be drawn again.
 */

import type {
  AvailableCommand,
  ContentBlock,
  Cost,
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
import type { Decision, SessionEnded } from "sandboxagent";

import type { EventIds, Gap, RpcId } from "./event.js";

/** How a session stands. */
export type SessionState = "running" | "waiting" | "idle" | "ended";

/** A session at one moment. */
export interface SessionView {
  /** Id of the last event that is in it; 0 before the first one. */
  readonly at: number;
  /** When that was: UTC, ISO 8601; empty before the first one. */
  readonly time: string;
  /** How many events are in it. */
  readonly count: number;
  readonly state: SessionState;
  /** As the log says it: from what made the session. */
  readonly agent: string | undefined;
  readonly cwd: string | undefined;
  readonly title: string | undefined;
  /** Everything that was said and done, oldest first. */
  readonly turns: readonly Turn[];
  /** Prompts that wait for the turns before them. */
  readonly queue: readonly QueuedPrompt[];
  /** The newest plan, as one checklist. */
  readonly plan: readonly PlanEntry[] | undefined;
  /** What waits for a person, oldest first. The same objects are in their turns. */
  readonly pending: readonly Asked[];
  readonly usage: Usage;
  readonly modes: SessionModeState | undefined;
  readonly configOptions: readonly SessionConfigOption[];
  readonly commands: readonly AvailableCommand[];
  /** What clients keep with the session. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Commands that run or ran in the server's terminals, or in an agent's own, by their ids. */
  readonly terminals: Readonly<Record<string, Terminal>>;
  /** Files that the server wrote for the agent (`fs/write_text_file`). */
  readonly writes: readonly FileWrite[];
  /** How it ended, until it is taken up again. */
  readonly ended: SessionEnded | undefined;
  /** Requests whose answer is not in the log yet. For `fold` alone, as is the following. */
  readonly calls: readonly OpenCall[];
  /** The newest whole text of each file that the server read or wrote for the agent. */
  readonly texts: Readonly<Record<string, string>>;
}

/** A prompt and all that came of it. What happens outside of turns is in one of its own, with the state `outside`. */
export interface Turn {
  /** Unique in its session, and the same at every moment. */
  readonly key: string;
  /** The server's name for it; absent outside of turns. */
  readonly turnId: string | undefined;
  readonly promptId: string | undefined;
  readonly state: "running" | "ended" | "cancelled" | "failed" | "outside";
  readonly startedAt: string;
  /** Its prompt was stopped while it waited for its turn. */
  readonly neverBegan: boolean;
  readonly endedAt: string | undefined;
  readonly stopReason: string | undefined;
  /** What went wrong, in a turn that has no stop reason. */
  readonly error: { readonly code: number; readonly message: string } | undefined;
  /** Tokens of this turn, when its agent counts them. */
  readonly tokens: Tokens | undefined;
  /** The events of the turn itself: its prompt, its start, its end and its result. */
  readonly events: EventIds;
  readonly items: readonly Item[];
}

/** What every item has. */
interface Common {
  /** Unique in its session, and the same at every moment. */
  readonly key: string;
  /** The events that it came from. */
  readonly events: EventIds;
  /** When it began: UTC, ISO 8601. */
  readonly at: string;
}

/** Something in a turn. */
export type Item = UserMessage | AgentText | Thought | Content | ToolCall | PlanSnapshot | Asked | Failure | Notice | Missing;

/** What a person, or another program, said. */
export interface UserMessage extends Common {
  readonly type: "user";
  readonly blocks: readonly ContentBlock[];
  /** Files that the prompt named. */
  readonly attachments: readonly { readonly path: string; readonly filename?: string; readonly mime?: string }[];
}

/** A piece of the agent's message, Markdown, as far as it has come. */
export interface AgentText extends Common {
  readonly type: "text";
  readonly text: string;
  readonly messageId: string | undefined;
}

/** What the agent thought. */
export interface Thought extends Common {
  readonly type: "thought";
  readonly text: string;
  readonly messageId: string | undefined;
  /** When its newest piece came. */
  readonly until: string;
}

/** Something in the agent's message that is no text: an image, a link, a resource. */
export interface Content extends Common {
  readonly type: "content";
  readonly block: ContentBlock;
}

/** Work of the agent's. */
export interface ToolCall extends Common {
  readonly type: "tool";
  readonly toolCallId: string;
  readonly title: string;
  readonly kind: ToolKind;
  readonly status: ToolCallStatus;
  readonly content: readonly ToolCallContent[];
  readonly locations: readonly ToolCallLocation[];
  readonly rawInput: unknown;
  readonly rawOutput: unknown;
  /** What the agent says of it in its own words. */
  readonly meta: Readonly<Record<string, unknown>> | undefined;
  /** When it was completed or failed; also when its turn ended without a word about it. */
  readonly endedAt: string | undefined;
  /** Key of the permission that was asked for it. */
  readonly askedKey: string | undefined;
}

/** The plan as it became at this point. Several in a row are one item. */
export interface PlanSnapshot extends Common {
  readonly type: "plan";
  readonly entries: readonly PlanEntry[];
}

/** Something that an agent asked of a person. */
export type Asked = AskedPermission | AskedQuestion | AskedForm;

interface AskedCommon extends Common {
  readonly type: "asked";
  /** The agent's own id of the request in what the log has; of what this page was asked, the one that clients know. */
  readonly requestId: RpcId;
  /** The session's turn that it belongs to. */
  readonly turnKey: string;
  /** What became of it; absent while it waits. */
  readonly decision: Settled | undefined;
}

/** A permission. */
export interface AskedPermission extends AskedCommon {
  readonly kind: "permission";
  /** What is to be allowed, exactly as the request has it. */
  readonly toolCall: ToolCallUpdate;
  readonly options: readonly PermissionOption[];
}

/** Questions with choices. */
export interface AskedQuestion extends AskedCommon {
  readonly kind: "question";
  readonly questionId: string | undefined;
  readonly prompt: string;
  readonly questions: readonly {
    readonly header?: string;
    readonly question: string;
    readonly options: readonly { readonly id: string; readonly label: string; readonly description?: string }[];
    readonly multiSelect: boolean;
  }[];
  readonly toolCallId: string | undefined;
}

/** A form, or an address to visit. */
export interface AskedForm extends AskedCommon {
  readonly kind: "elicitation";
  readonly message: string;
  readonly mode: string;
  /** JSON schema of a flat object. */
  readonly schema: Readonly<Record<string, unknown>> | undefined;
  readonly url: string | undefined;
}

/** What became of a request, and when. `by` says who: see the SDK's `Decision`. */
export type Settled = Pick<Decision, "outcome" | "optionId" | "optionKind" | "answers" | "content" | "reason"> & {
  /** Absent for a moment, between an answer and the server's word about it. */
  readonly by: Decision["by"] | undefined;
  readonly at: string;
};

/** Something went wrong: a turn failed, or the agent's process died. */
export interface Failure extends Common {
  readonly type: "failure";
  readonly message: string;
  readonly code: number | undefined;
  readonly exitCode: number | undefined;
  readonly signal: string | undefined;
  readonly stderr: SessionEnded["stderr"] | undefined;
  /** What else the error says. */
  readonly data: unknown;
}

/** A fact worth a line. */
export interface Notice extends Common {
  readonly type: "notice";
  readonly about: "mode" | "option" | "ended" | "resumed" | "decision" | "unparsed" | "agent" | "unknown";
  readonly text: string;
}

/** Events that are no longer kept. */
export interface Missing extends Common {
  readonly type: "missing";
  readonly gap: Pick<Gap, "after" | "resumesAt">;
}

/** A prompt that waits for its turn. */
export interface QueuedPrompt {
  readonly key: string;
  readonly event: number;
  readonly at: string;
  readonly promptId: string | undefined;
  readonly blocks: readonly ContentBlock[];
  readonly attachments: UserMessage["attachments"];
}

/** Tokens of a turn. */
export interface Tokens {
  readonly total: number;
  readonly input: number;
  readonly output: number;
  readonly thought: number | undefined;
  readonly cacheRead: number | undefined;
  readonly cacheWrite: number | undefined;
}

/** What the session has used. Each is absent when its agent does not say. */
export interface Usage {
  /** Tokens in the context now, and how many fit. */
  readonly context: { readonly used: number; readonly size: number } | undefined;
  /** All of the session's tokens, turn by turn. */
  readonly tokens: Tokens | undefined;
  readonly cost: Pick<Cost, "amount" | "currency"> | undefined;
}

/** A command in a terminal of the server's, or in one of the agent's own. */
export interface Terminal {
  readonly terminalId: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd: string | undefined;
  /** As far as the agent has asked for it. */
  readonly output: string;
  readonly truncated: boolean;
  readonly exit: { readonly exitCode: number | null; readonly signal: string | null } | undefined;
  readonly released: boolean;
  readonly events: EventIds;
}

/** A file that the server wrote for the agent. */
export interface FileWrite {
  readonly path: string;
  /** What was in it; undefined when the log does not tell. */
  readonly oldText: string | undefined;
  readonly newText: string;
  readonly turnKey: string;
  /** Whether it was written; undefined until the server has said so. */
  readonly done: boolean | undefined;
  readonly at: string;
  readonly events: EventIds;
}

/** A request whose answer is not in the log yet. */
export interface OpenCall {
  readonly event: number;
  readonly id: RpcId;
  readonly fromAgent: boolean;
  readonly method: string;
  readonly params: Readonly<Record<string, unknown>>;
}
