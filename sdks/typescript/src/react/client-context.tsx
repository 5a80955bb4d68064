/** Gives components the client that they use. */

import { type ReactNode, createContext, useContext, useSyncExternalStore } from "react";
import { type ConnectionState, InvalidCall, type SandboxAgent } from "sandboxagent";

const Client: ReturnType<typeof createContext<SandboxAgent | undefined>> = createContext<SandboxAgent | undefined>(
  undefined,
);

/** What the provider needs. */
export interface SandboxAgentProviderProps {
  /** A client that is connected: `await SandboxAgent.connect(…)`. */
  readonly client: SandboxAgent;
  /** Components that use it. */
  readonly children?: ReactNode;
}

/** Components inside use this client. */
export function SandboxAgentProvider({ client, children }: SandboxAgentProviderProps): ReactNode {
  return <Client.Provider value={client}>{children}</Client.Provider>;
}

/**
 * The client of the provider around, or the given one.
 *
 * @throws InvalidCall when there is neither.
 */
export function useSandboxAgent(given?: SandboxAgent): SandboxAgent {
  const provided = useContext(Client);
  const client = given ?? provided;
  if (client === undefined) throw new InvalidCall("there is no client: put <SandboxAgentProvider client> around it");
  return client;
}

/** Whether the server's events reach the client now, and why not. */
export function useConnection(given?: SandboxAgent): ConnectionState {
  const client = useSandboxAgent(given);
  return useSyncExternalStore(
    (changed) => client.onConnectionChange(changed),
    () => client.connection,
    () => client.connection,
  );
}
