/** Talks to coding agents through a sandbox-agent server: one that runs somewhere, or one of your own. */

export type {
  ContentBlock,
  McpServer,
  PermissionOption,
  PromptResponse,
  SessionConfigOption,
  SessionMode,
  SessionUpdate,
  StopReason,
  ToolCallUpdate,
} from "@agentclientprotocol/sdk";

export {
  type Agent,
  type AgentHealth,
  Agents,
  type Artifact,
  type Credential,
  type Features,
  type Health,
  Install,
  type InstallInfo,
  type InstallOptions,
  type InstallResult,
  type Model,
  type Models,
  type Modes,
  type Progress,
  type ServerStatus,
  type Stderr,
} from "./agents.js";
export type { ElicitationHandler, Handlers, PermissionHandler, QuestionHandler } from "./asking.js";
export type { Data } from "./bytes.js";
export { type ClientOptions, type ConnectOptions, SandboxAgent, type StartOptions } from "./client.js";
export type { ConnectionState } from "./connection.js";
export type { EmbeddedOptions } from "./embedded.js";
export {
  AlreadyAnswered,
  ClientError,
  ConnectionLost,
  ForeignAnswer,
  InvalidCall,
  RequestError,
  SandboxAgentError,
  ServerProblem,
  StartFailed,
} from "./errors.js";
export type { FleetNode } from "./fleet.js";
export { type ByteRange, type Entry, Files, type Uploaded, type Written } from "./files.js";
export type { Fetch } from "./http.js";
export type { SessionChanges, WatchSessionsOptions } from "./inventory.js";
export { Following } from "./following.js";
export { Iteration } from "./iteration.js";
export type { Logger } from "./log.js";
export type { LogEvent } from "./past.js";
export {
  type AgentRequest,
  type Choice,
  ElicitationRequest,
  PermissionRequest,
  type Question,
  type QuestionAnswer,
  QuestionRequest,
  type Rejection,
  type RequestPlace,
} from "./requests.js";
export { type Match, Search, type SearchOptions } from "./search.js";
export { Session } from "./session.js";
export {
  type Activity,
  type CreateSessionOptions,
  type SessionInfo,
  Sessions,
  type Terminated,
} from "./sessions.js";
export type { SocketConstructor, SocketLike } from "./socket.js";
export type { Envelope, Tap } from "./stream.js";
export { type Attachment, type PromptOptions, Turn } from "./turn.js";
export {
  type Decision,
  type Gap,
  type MetadataUpdated,
  type PromptSent,
  type RequestOpened,
  type SessionEnded,
  type SessionEvent,
  type SessionItem,
  type SessionOpened,
  type TurnEnded,
  type TurnItem,
  type TurnResult,
  type TurnStarted,
  textOf,
} from "./updates.js";
export { type Change, Watch } from "./watch.js";
export { EventIds, type EventRange } from "./view/event-ids.js";
export { SessionReducer, reduce } from "./view/reducer.js";
export { type RequestFacts, requestFacts } from "./view/requests.js";
export {
  type ContentItem,
  EMPTY_VIEW,
  type ElicitationItem,
  type FailureItem,
  type FileWrite,
  type GapItem,
  type ItemFacts,
  type NoticeItem,
  type OpenCall,
  type PermissionItem,
  type PlanItem,
  type QuestionItem,
  type QueuedPrompt,
  type RequestDecision,
  type RequestItem,
  type RequestItemFacts,
  type SessionEnd,
  type SessionStatus,
  type SessionUsage,
  type SessionView,
  type TerminalView,
  type TextItem,
  type ThoughtItem,
  type TokenCounts,
  type ToolCallItem,
  type TurnView,
  type UserItem,
  type ViewItem,
} from "./view/session-view.js";
