/** What rooms know of the server: one connection and one inventory for the whole page. */

import { type ReactNode, createContext, use, useEffect, useState } from "react";
import type { Health, SandboxAgent, SessionInfo } from "sandboxagent";

import { type ConnectionView, ServerConnection } from "./connection.js";
import { Inventory, type InventoryView, NO_SESSIONS } from "./inventory.js";
import { Store, useStore } from "./store.js";
import { onTokenBrought, takeToken } from "./token.js";

interface Server {
  readonly client: SandboxAgent;
  readonly inventory: Inventory;
}

const ConnectionContext = createContext<ServerConnection | undefined>(undefined);
const ServerContext = createContext<Server | undefined>(undefined);
const NOTHING = new Store<InventoryView>(NO_SESSIONS);

interface ConnectedProps {
  readonly children: ReactNode;
  /** What is shown until there is a server that lets this page in. */
  readonly otherwise: ReactNode;
}

/** Connects to the server that the page came from; its children have it. */
export function Connected({ children, otherwise }: ConnectedProps): ReactNode {
  const [connection] = useState(() => new ServerConnection(window.location.origin));
  const client = useStore(connection.client);
  const [inventory, setInventory] = useState<Inventory>();
  useEffect(() => {
    void connection.begin(takeToken());
    return onTokenBrought(() => void connection.connect(takeToken()));
  }, [connection]);
  useEffect(() => {
    if (!client) return undefined;
    const made = new Inventory(client);
    setInventory(made);
    return () => {
      made.close();
      setInventory(undefined);
    };
  }, [client]);
  return (
    <ConnectionContext value={connection}>
      {client && inventory ? <ServerContext value={{ client, inventory }}>{children}</ServerContext> : otherwise}
    </ConnectionContext>
  );
}

/** The server: its client, of the SDK, for everything that a room wants of it. */
export function useServer(): Server {
  const server = use(ServerContext);
  if (!server) throw new Error("there is no server outside of <Connected>");
  return server;
}

/** The connection itself: connecting with a token, and forgetting it. */
export function useConnection(): ServerConnection {
  const connection = use(ConnectionContext);
  if (!connection) throw new Error("there is no connection outside of <Connected>");
  return connection;
}

/** How the connection stands. */
export function useConnectionView(): ConnectionView {
  return useStore(useConnection().view);
}

/** The server's health, as of the last time that the connection came to be. */
export function useHealth(): Health | undefined {
  return useStore(useConnection().health);
}

/** All sessions, live. */
export function useInventory(): InventoryView {
  return useStore(use(ServerContext)?.inventory.view ?? NOTHING);
}

/** One session of the inventory; undefined when there is none, or it is not known yet. */
export function useSessionInfo(id: string): SessionInfo | undefined {
  return useInventory().sessions.find((each) => each.sessionId === id || each.alias === id);
}
