/** React hooks and components that show sessions of a sandbox-agent server, and ask people what agents ask. */

export {
  SandboxAgentProvider,
  type SandboxAgentProviderProps,
  useConnection,
  useSandboxAgent,
} from "./client-context.js";
export { Diff, type DiffProps } from "./diff.js";
export {
  type HookOptions,
  type PendingRequests,
  type SessionList,
  type UsedSession,
  usePendingRequests,
  useSession,
  useSessions,
} from "./hooks.js";
export { Messages, type MessagesProps, Plan, type PlanProps, ToolCall, type ToolCallProps } from "./messages.js";
export { type CardProps, ElicitationCard, PermissionCard, QuestionCard, RequestCard } from "./request-cards.js";
export type { SessionState } from "./session-store.js";
