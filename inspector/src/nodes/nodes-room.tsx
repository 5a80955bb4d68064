/** The room of nodes: the servers behind a gateway, what they have, and how busy they are. */

import { Server } from "lucide-react";
import { type ReactNode, useCallback, useEffect } from "react";
import type { FleetNode } from "sandboxagent";

import { Ago, Badge, Button, EmptyState, ErrorNote, Loading } from "../design/index.js";
import { useLoaded, useServer } from "../server/index.js";
import { SafeText } from "../text/safe-text.js";
import styles from "./nodes.module.css";

/** Milliseconds between two looks, while the room is open. */
const EVERY = 3_000;

export function NodesRoom(): ReactNode {
  const { client } = useServer();
  const load = useCallback(() => client.nodes(), [client]);
  const [nodes, reload] = useLoaded(load);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || reload(), EVERY);
    return () => clearInterval(timer);
  }, [reload]);
  if (!nodes.value) {
    return nodes.state === "failed" ? (
      <ErrorNote title="Could not load the nodes" error={nodes.error} actions={<Button onClick={reload}>Try again</Button>} />
    ) : (
      <Loading label="Loading the nodes" />
    );
  }
  if (nodes.value.length === 0) {
    return (
      <EmptyState first icon={<Server />} title="No nodes yet">
        Start a server with <code>--join</code>, and it appears here.
      </EmptyState>
    );
  }
  return (
    <section className={styles.room} aria-label="All nodes">
      <h1>Nodes</h1>
      <NodeTable nodes={nodes.value} />
    </section>
  );
}

export function NodeTable({ nodes }: { readonly nodes: readonly FleetNode[] }): ReactNode {
  return (
    <div className={styles.scroller} tabIndex={0} role="region" aria-label="Table of nodes">
      <table className={styles.table}>
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col">Labels</th>
            <th scope="col">Agents</th>
            <th scope="col">Turns</th>
            <th scope="col">Sessions</th>
            <th scope="col">Version</th>
            <th scope="col">Started</th>
          </tr>
        </thead>
        <tbody>
          {nodes.map((node) => (
            <Row key={node.node} node={node} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A node says these things of itself, so none of them is trusted to look like what it is. */
function Row({ node }: { readonly node: FleetNode }): ReactNode {
  return (
    <tr>
      <th scope="row">
        <span className={styles.name}>
          <SafeText text={node.node} as="prose" limit={40} />
          {node.draining && <Badge tone="waiting">Draining</Badge>}
          {node.setAside !== undefined && <Badge tone="bad">Set aside</Badge>}
          {node.limited !== undefined && <Badge tone="waiting">Limited</Badge>}
        </span>
        {[node.setAside, node.limited].map(
          (reason) =>
            reason !== undefined && (
              <p key={reason} className={styles.reason}>
                <SafeText text={reason} as="prose" limit={400} />
              </p>
            ),
        )}
      </th>
      <td>
        <span className={styles.chips}>
          {Object.entries(node.labels).map(([name, value]) => (
            <Badge key={name}>
              <SafeText text={`${name}=${value}`} as="prose" limit={80} />
            </Badge>
          ))}
        </span>
      </td>
      <td className={styles.agents}>
        <SafeText text={node.agents.join(", ")} as="prose" limit={300} />
      </td>
      <td className={styles.number}>{node.running > 0 ? <Badge tone="accent">{node.running}</Badge> : node.running}</td>
      <td className={styles.number}>{node.sessions}</td>
      <td>
        <SafeText text={node.version} as="prose" limit={40} />
      </td>
      <td className={styles.number}>{Number.isNaN(Date.parse(node.since)) ? "" : <Ago at={node.since} />}</td>
    </tr>
  );
}
