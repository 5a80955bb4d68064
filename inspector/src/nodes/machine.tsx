/** Whose agents and files a room shows: those of the server itself, or at a gateway those of one of its nodes. */

import { Server } from "lucide-react";
import { type ReactNode, createContext, use, useCallback, useMemo } from "react";
import type { Agents, Files, FleetNode } from "sandboxagent";

import { Button, EmptyState, ErrorNote, Loading, Select } from "../design/index.js";
import { useHealth, useLoaded, useServer } from "../server/index.js";
import { spelledOut } from "../text/visible.js";
import styles from "./nodes.module.css";

export interface Machine {
  /** The node's name; undefined for a server that is no gateway. */
  readonly node: string | undefined;
  readonly agents: Agents;
  readonly files: Files;
}

const Chosen = createContext<Machine | undefined>(undefined);

export function useMachine(): Machine {
  const { client } = useServer();
  const own = useMemo(() => ({ node: undefined, agents: client.agents, files: client.files }), [client]);
  return use(Chosen) ?? own;
}

interface OnMachineProps {
  /** The node that the address names. */
  readonly wanted: string | undefined;
  readonly onNode: (node: string) => void;
  readonly children: ReactNode;
}

/** At a gateway with several nodes, a chooser above the room. */
export function OnMachine(props: OnMachineProps): ReactNode {
  const isGateway = useHealth()?.gateway !== undefined;
  return isGateway ? <OnNode {...props} /> : props.children;
}

function OnNode({ wanted, onNode, children }: OnMachineProps): ReactNode {
  const { client } = useServer();
  const load = useCallback(() => client.nodes(), [client]);
  const [nodes, reload] = useLoaded(load);
  const all = nodes.value;
  const node = wanted ?? all?.[0]?.node;
  const isThere = all?.some((each) => each.node === node) ?? false;
  const machine = useMemo(
    () => (node === undefined ? undefined : { node, agents: client.agents.ofNode(node), files: client.files.ofNode(node) }),
    [client, node],
  );
  if (all === undefined) {
    return nodes.state === "failed" ? (
      <ErrorNote title="Could not load the nodes" error={nodes.error} actions={<Button onClick={reload}>Try again</Button>} />
    ) : (
      <Loading label="Loading the nodes" />
    );
  }
  if (machine === undefined) {
    return (
      <EmptyState first icon={<Server />} title="No nodes yet" actions={<Button onClick={reload}>Refresh</Button>}>
        Start a server with <code>--join</code>, and its agents and files appear here.
      </EmptyState>
    );
  }
  return (
    <div className={styles.on}>
      {(all.length > 1 || !isThere) && <Chooser nodes={all} node={machine.node} onNode={onNode} />}
      {isThere ? (
        <Chosen key={machine.node} value={machine}>
          {children}
        </Chosen>
      ) : (
        <EmptyState first icon={<Server />} title="This node is offline" actions={<Button onClick={reload}>Refresh</Button>}>
          Its sessions can be read meanwhile. Its agents and files are there again when it is.
        </EmptyState>
      )}
    </div>
  );
}

interface ChooserProps {
  readonly nodes: readonly FleetNode[];
  readonly node: string;
  readonly onNode: (node: string) => void;
}

function Chooser({ nodes, node, onNode }: ChooserProps): ReactNode {
  const names = nodes.map((each) => each.node);
  return (
    <header className={styles.chooser}>
      <label>
        Node
        <Select value={node} onChange={(event) => onNode(event.target.value)}>
          {(names.includes(node) ? names : [...names, node]).map((name) => (
            <option key={name} value={name}>
              {spelledOut(name, "prose").slice(0, 80)}
            </option>
          ))}
        </Select>
      </label>
    </header>
  );
}
