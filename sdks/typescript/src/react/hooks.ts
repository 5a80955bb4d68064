/** Hooks: a session with its view, the open requests, and the list of sessions. */

import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import {
  type AgentRequest,
  type ConnectionState,
  type ContentBlock,
  InvalidCall,
  type PromptOptions,
  type SandboxAgent,
  type SessionInfo,
  type TurnResult,
} from "sandboxagent";

import { useConnection, useSandboxAgent } from "./client-context.js";
import { LOADING, type SessionState, storeOf } from "./session-store.js";

/** Which client a hook uses. */
export interface HookOptions {
  /** In place of the provider's client. */
  readonly client?: SandboxAgent;
}

/** A session in a component. */
export interface UsedSession extends SessionState {
  /** Whether the server's events reach the client now. */
  readonly connection: ConnectionState;
  /** Sends a prompt, and resolves when its turn has ended. The view shows the turn meanwhile, and how it failed. */
  prompt(prompt: string | readonly ContentBlock[], options?: PromptOptions): Promise<TurnResult>;
  /** Cancels the running turn, and withdraws queued prompts. */
  cancel(): Promise<void>;
}

const silent = (): (() => void) => () => undefined;

/** A session: its view, which changes as things happen, and what you can do with it. Without an id it stays empty. */
export function useSession(sessionId: string | undefined, options: HookOptions = {}): UsedSession {
  const client = useSandboxAgent(options.client);
  const connection = useConnection(client);
  const store = useMemo(
    () => (sessionId === undefined ? undefined : storeOf(client, sessionId)),
    [client, sessionId],
  );
  const read = store?.state ?? (() => LOADING);
  const state = useSyncExternalStore(store?.subscribe ?? silent, read, read);
  const prompt = useCallback<UsedSession["prompt"]>(
    async (content, more) => {
      const session = store?.state().session ?? (sessionId && (await client.sessions.attach(sessionId)));
      if (!session) throw new InvalidCall("there is no session to prompt");
      return await session.prompt(content, more);
    },
    [client, store, sessionId],
  );
  const cancel = useCallback(async () => {
    await store?.state().session?.cancel();
  }, [store]);
  return useMemo(() => ({ ...state, connection, prompt, cancel }), [state, connection, prompt, cancel]);
}

/** Open requests in a component. */
export interface PendingRequests {
  /** Requests that wait for a person, oldest first. */
  readonly requests: readonly AgentRequest[];
  /** Why they could not be read. */
  readonly error: unknown;
}

/** Requests that wait for a person: of one session, or of all sessions of the server. */
export function usePendingRequests(options: HookOptions & { readonly sessionId?: string } = {}): PendingRequests {
  const client = useSandboxAgent(options.client);
  const { sessionId } = options;
  const { view } = useSession(sessionId, { client });
  const { sessions } = useList(client, sessionId === undefined);
  const ofSession = view.pending.map(({ key }) => key);
  const ofAll = sessions.filter(({ pending }) => pending > 0).map((each) => `${each.sessionId} ${each.eventCount}`);
  const waiting = (sessionId === undefined ? ofAll : ofSession).join("\n");
  const [found, setFound] = useState<PendingRequests>({ requests: [], error: undefined });
  useEffect(() => {
    let current = true;
    const set = (requests: readonly AgentRequest[], error?: unknown): void => {
      if (current) setFound({ requests, error });
    };
    if (waiting === "") set([]);
    else
      client.pending(sessionId).then(
        (requests) => set(requests),
        (error: unknown) => set([], error),
      );
    return () => {
      current = false;
    };
  }, [client, sessionId, waiting]);
  return found;
}

/** The list of sessions in a component. */
export interface SessionList {
  /** All sessions of the server, newest first. */
  readonly sessions: readonly SessionInfo[];
  /** Whether they are being read for the first time. */
  readonly isLoading: boolean;
  /** Why they cannot be read. */
  readonly error: unknown;
}

/** All sessions of the server, kept up to date. */
export function useSessions(options: HookOptions = {}): SessionList {
  return useList(useSandboxAgent(options.client), true);
}

function useList(client: SandboxAgent, isWanted: boolean): SessionList {
  const [list, setList] = useState<SessionList>({ sessions: [], isLoading: true, error: undefined });
  const known = useRef(new Map<string, SessionInfo>());
  useEffect(() => {
    if (!isWanted) return undefined;
    known.current = new Map();
    const watching = client.sessions.watch();
    const read = async (): Promise<void> => {
      for await (const { sessions: changed, gone, all } of watching) {
        if (all) known.current.clear();
        for (const session of changed) known.current.set(session.sessionId, session);
        for (const id of gone) known.current.delete(id);
        const sessions = [...known.current.values()].sort((one, other) => (one.createdAt < other.createdAt ? 1 : -1));
        setList({ sessions, isLoading: false, error: undefined });
      }
    };
    let current = true;
    read().catch((error: unknown) => current && setList((before) => ({ ...before, isLoading: false, error })));
    return () => {
      current = false;
      void watching.return();
    };
  }, [client, isWanted]);
  return list;
}
