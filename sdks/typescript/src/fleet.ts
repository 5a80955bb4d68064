/** Nodes of a fleet: what a gateway knows of the servers behind it. */

/** A server behind a gateway, while it is there. */
export interface FleetNode {
  /** Its name. */
  readonly node: string;
  /** Its version of sandbox-agent. */
  readonly version: string;
  /** How it describes itself; an operator's word for a pinned one. */
  readonly labels: Readonly<Record<string, string>>;
  /** Ids of the agents that are installed there. */
  readonly agents: readonly string[];
  /** Turns that run there. */
  readonly running: number;
  /** How many sessions belong to it. */
  readonly sessions: number;
  /** When it was started, by its own clock: UTC, ISO 8601 with milliseconds. */
  readonly since: string;
  /** It gets no new sessions. */
  readonly draining: boolean;
  /** Its labels are an operator's word, and so is which agents it may have. Otherwise both are the node's own word. */
  readonly pinned: boolean;
  /** What the fleet did not take of it lately, and why. */
  readonly limited?: string;
  /** Why no gateway hears it for a while: it floods. */
  readonly setAside?: string;
}

/**
 * Which node a request is for: by its name, or by one of its sessions. A server needs neither.
 *
 * @internal
 */
export type Where = { readonly node?: string; readonly sessionId?: string };
