/** The room of agents: what each can do, where it comes from, and how its process is doing. */

import { ArrowLeft, Bot, Check, Plus, X } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useMemo, useState } from "react";
import type { Agent } from "sandboxagent";

import { Badge, Button, EmptyState, ErrorNote, Loading, Words, durationText, useNow } from "../design/index.js";
import { useMachine } from "../nodes/machine.js";
import { Link, go } from "../router.js";
import { useLoaded } from "../server/index.js";
import { Ansi } from "../text/ansi.js";
import { Install } from "./install.js";
import { AgentFace, SOURCES, StandingBadge, aboutOf, standingOf } from "./standing.js";
import styles from "./agents.module.css";

/** Milliseconds between two looks, while the room is open. */
const EVERY = 3_000;

export function AgentsRoom({ agent: chosen }: { readonly agent: string | undefined }): ReactNode {
  const { node, agents: those } = useMachine();
  const [registry, setRegistry] = useState(false);
  const load = useCallback(() => those.list({ registry }), [those, registry]);
  const [agents, reload] = useLoaded(load);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || reload(), EVERY);
    return () => clearInterval(timer);
  }, [reload]);
  const sorted = useMemo(() => [...(agents.value ?? [])].sort(byUse), [agents.value]);
  const shown = sorted.find(({ id }) => id === chosen) ?? (chosen === undefined ? sorted[0] : undefined);
  if (!agents.value) {
    return agents.state === "failed" ? (
      <ErrorNote title="Could not load the agents" error={agents.error} actions={<Button onClick={reload}>Try again</Button>} />
    ) : (
      <Loading label="Loading the agents" />
    );
  }
  return (
    <div className={`${styles.room} ${chosen === undefined ? "" : styles.chosen}`}>
      <section className={styles.list} aria-label="All agents">
        <header>
          <h1>Agents</h1>
          <Button size="small" look="quiet" aria-pressed={registry} onClick={() => setRegistry(!registry)}>
            Registry
          </Button>
        </header>
        <ul>
          {sorted.map((agent) => (
            <li key={agent.id}>
              <Link
                to={{ room: "agents", agent: agent.id, node }}
                className={styles.agent}
                aria-current={agent === shown ? "page" : undefined}
              >
                <AgentFace agent={agent.id} />
                <Words name={agent.title} about={aboutOf(agent)} />
                <StandingBadge agent={agent} />
              </Link>
            </li>
          ))}
        </ul>
      </section>
      <section className={styles.detail} aria-label="The agent">
        {shown ? (
          <Detail key={shown.id} agent={shown} onChange={reload} />
        ) : (
          <EmptyState icon={<Bot />} title="Agent not found">
            The server knows no agent <code>{chosen}</code>.
          </EmptyState>
        )}
      </section>
    </div>
  );
}

const ORDER = ["installing", "ready", "broken", "unarmed", "missing", "unsupported"];

function byUse(one: Agent, other: Agent): number {
  return ORDER.indexOf(standingOf(one)) - ORDER.indexOf(standingOf(other)) || one.title.localeCompare(other.title);
}

function Detail({ agent, onChange }: { readonly agent: Agent; readonly onChange: () => void }): ReactNode {
  const { node } = useMachine();
  return (
    <div className={styles.inside}>
      <div className={styles.top}>
        <AgentFace agent={agent.id} />
        <div>
          <h2>{agent.title}</h2>
          <p>{agent.description}</p>
        </div>
      </div>
      <div className={styles.acts}>
        <Button look="quiet" className={styles.back} onClick={() => go({ room: "agents", node })}>
          <ArrowLeft aria-hidden /> All agents
        </Button>
        {agent.installed && (
          <Button look="primary" onClick={() => go({ room: "new", agent: agent.id, node })}>
            <Plus aria-hidden /> New session
          </Button>
        )}
        {agent.supported && agent.install.source !== "bundled" && agent.install.source !== "path" && (
          <Install agent={agent} again={agent.installed} onEnd={onChange} />
        )}
      </div>
      {!agent.supported && <ErrorNote title="Not available on this machine">{agent.unsupportedReason}</ErrorNote>}
      <Process agent={agent} />
      <Stderr agent={agent} />
      <Credentials agent={agent} />
      <Capabilities agent={agent} />
      <Offers agent={agent} />
      <Provenance agent={agent} />
      {agent.instructions && standingOf(agent) !== "ready" && (
        <div className={styles.section}>
          <h3>Instructions</h3>
          <div className={styles.card}>
            <pre className={styles.pre} tabIndex={0}>
              {agent.instructions}
            </pre>
          </div>
        </div>
      )}
    </div>
  );
}

function Process({ agent }: { readonly agent: Agent }): ReactNode {
  const { status, pid, uptimeMs, restartCount, lastError } = agent.serverStatus;
  const [seenAt] = useState(Date.now);
  const now = useNow(1_000);
  const tone = status === "running" ? "ok" : status === "error" ? "bad" : status === "stopped" ? "neutral" : "accent";
  return (
    <Facts
      title="Process"
      facts={[
        ["State", <Badge tone={tone}>{status}</Badge>],
        ["Process id", pid],
        ["Uptime", uptimeMs === undefined ? undefined : durationText(uptimeMs + Math.max(0, now - Math.max(seenAt, now - 3_000)))],
        ["Exits", restartCount === 0 ? "none" : String(restartCount)],
        ["Last error", lastError && <pre className={styles.pre}>{lastError}</pre>],
      ]}
    />
  );
}

/** What its processes said last, also those that have died. */
function Stderr({ agent }: { readonly agent: Agent }): ReactNode {
  const { agents } = useMachine();
  const { restartCount, status } = agent.serverStatus;
  // Read again when its process has changed.
  const load = useCallback(() => agents.stderr(agent.id), [agents, agent.id, restartCount, status]);
  const [stderr] = useLoaded(agent.installed ? load : undefined);
  if (!stderr.value?.text.trim()) return null;
  return (
    <div className={styles.section}>
      <h3>{stderr.value.truncated ? "stderr, the newest of it" : "stderr"}</h3>
      <Ansi output={stderr.value.text} label="stderr" />
    </div>
  );
}

function Credentials({ agent }: { readonly agent: Agent }): ReactNode {
  if (agent.credentials.length === 0) return null;
  return (
    <Facts
      title="Credentials: one is enough"
      facts={agent.credentials.map(({ name, kind, found }) => [
        <code key={name}>{name}</code>,
        <span key={kind}>
          <Badge tone={found ? "ok" : "neutral"}>
            {found ? <Check aria-hidden /> : <X aria-hidden />} {found ? "found" : "not found"}
          </Badge>{" "}
          {kind}
        </span>,
      ])}
    />
  );
}

function Capabilities({ agent }: { readonly agent: Agent }): ReactNode {
  const names = namesOf(agent.capabilities as Record<string, unknown>);
  if (names.length === 0) return null;
  return (
    <div className={styles.section}>
      <h3>Capabilities</h3>
      <div className={`${styles.card} ${styles.chips}`}>
        {names.map((name) => (
          <Badge key={name}>{name}</Badge>
        ))}
      </div>
    </div>
  );
}

/** What is advertised as true, or as an object, by the way to it. */
export function namesOf(capabilities: Readonly<Record<string, unknown>>, way = ""): string[] {
  return Object.entries(capabilities).flatMap(([name, value]) => {
    const here = way ? `${way}.${name}` : name;
    if (name === "_meta" || value === false || value === null) return [];
    if (typeof value !== "object") return [here];
    const inner = Array.isArray(value) ? [] : namesOf(value as Record<string, unknown>, here);
    return inner.length > 0 ? inner : Object.keys(value).length === 0 ? [here] : [];
  });
}

function Offers({ agent }: { readonly agent: Agent }): ReactNode {
  const models = agent.models?.availableModels ?? [];
  const modes = agent.modes?.availableModes ?? [];
  if (models.length + modes.length === 0) return null;
  return (
    <Facts
      title="Offers"
      facts={[
        ["Models", models.length > 0 && models.map(({ modelId, name }) => name || modelId).join(", ")],
        ["Modes", modes.length > 0 && modes.map(({ name }) => name).join(", ")],
      ]}
    />
  );
}

function Provenance({ agent }: { readonly agent: Agent }): ReactNode {
  const { install } = agent;
  return (
    <Facts
      title="Where it comes from"
      facts={[
        ["Source", SOURCES[install.source] ?? install.source],
        ["Package", install.package && <code>{install.package}</code>],
        ["Version", agent.version],
        ["Agent behind it", agent.nativeVersion],
        ["Processes", agent.isolation === "session" ? "one for each session" : "one for all sessions"],
        ["Program", agent.path && <code>{agent.path}</code>],
        ["Installed", install.installedAt && new Date(install.installedAt).toLocaleString()],
        ["Verified", install.verified ? (install.verifiedAt ? new Date(install.verifiedAt).toLocaleString() : "yes") : "no"],
        ["Install failed", install.verificationError],
        ...install.artifacts.flatMap((each): [ReactNode, ReactNode][] => [
          [
            each.name,
            <span key={each.name}>
              {each.version ?? "unknown version"} {each.unverified && <Badge tone="waiting">unverified</Badge>}
              {(each.sha256 ?? each.integrity) && (
                <>
                  <br />
                  <code>{each.sha256 ?? each.integrity}</code>
                </>
              )}
            </span>,
          ],
        ]),
        ["Note", install.note],
      ]}
    />
  );
}

function Facts({ title, facts }: { readonly title: string; readonly facts: readonly (readonly [ReactNode, ReactNode])[] }): ReactNode {
  const known = facts.filter(([, value]) => value !== undefined && value !== false && value !== "" && value !== null);
  if (known.length === 0) return null;
  return (
    <div className={styles.section}>
      <h3>{title}</h3>
      <dl className={`${styles.card} ${styles.facts}`}>
        {known.map(([name, value], at) => (
          <Fact key={at} name={name} value={value} />
        ))}
      </dl>
    </div>
  );
}

function Fact({ name, value }: { readonly name: ReactNode; readonly value: ReactNode }): ReactNode {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}
