/** Nodes of a fleet: the servers behind a gateway. */

/** A server behind a gateway, while it is there. */
export interface FleetNode {
  /** Its name. */
  readonly node: string;
  /** Its version of sandbox-agent. */
  readonly version: string;
  /** Its own labels; of a pinned node, the operator's. */
  readonly labels: Readonly<Record<string, string>>;
  /** Ids of the agents that are installed there. */
  readonly agents: readonly string[];
  /** Turns that run there. */
  readonly running: number;
  /** The number of sessions that belong to it. */
  readonly sessions: number;
  /** When it was started, by its own clock: UTC, ISO 8601 with milliseconds. */
  readonly since: string;
  /** Whether it gets no new sessions. */
  readonly draining: boolean;
  /** Whether an operator sets its labels and its allowed agents. Otherwise the node reports both itself. */
  readonly pinned: boolean;
  /** The messages of it that the fleet refused lately, and the reason. */
  readonly limited?: string;
  /** Why gateways ignore it for a while: it floods. */
  readonly setAside?: string;
}

/**
 * The node that a request is for: by its name, or by one of its sessions. A server needs neither.
 *
 * @internal
 */
export type Where = { readonly node?: string; readonly sessionId?: string };
