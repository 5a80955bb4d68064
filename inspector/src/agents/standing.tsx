/** How an agent stands: whether it can be had, is installed, and can reach a model. */

import type { ReactNode } from "react";
import type { Agent } from "sandboxagent";

import { Badge, type Tone } from "../design/index.js";

export type Standing = "unsupported" | "installing" | "missing" | "broken" | "unarmed" | "ready";

const WORDS: Record<Standing, readonly [string, Tone]> = {
  unsupported: ["Not available on this machine", "neutral"],
  installing: ["Installing", "accent"],
  missing: ["Not installed", "neutral"],
  broken: ["Does not start", "bad"],
  unarmed: ["No credentials", "waiting"],
  ready: ["Ready", "ok"],
};

export function standingOf(agent: Agent): Standing {
  if (!agent.supported) return "unsupported";
  if (agent.install.progress) return "installing";
  if (!agent.installed) return "missing";
  if (agent.serverStatus.status === "error") return "broken";
  return agent.credentialsAvailable ? "ready" : "unarmed";
}

/** Where an agent comes from, in words. */
export const SOURCES: Readonly<Record<string, string>> = {
  bundled: "Comes with the server",
  path: "Named in agents.toml",
  registry: "The ACP registry",
  fallback: "Pinned by the server",
};

/** What stands below an agent's name: its version, else what tells it from others. */
export function aboutOf(agent: Agent): string {
  return agent.version ?? (agent.title === agent.id ? (SOURCES[agent.install.source] ?? agent.id) : agent.id);
}

export function StandingBadge({ agent }: { readonly agent: Agent }): ReactNode {
  const [word, tone] = WORDS[standingOf(agent)];
  return <Badge tone={tone}>{word}</Badge>;
}

/** A letter or two in a square: an agent's face. */
export function AgentFace({ agent }: { readonly agent: string }): ReactNode {
  const hue = [...agent].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 360, 7);
  return (
    <span className="agent-face" style={{ "--hue": hue } as React.CSSProperties} aria-hidden>
      {agent.slice(0, 2)}
    </span>
  );
}
