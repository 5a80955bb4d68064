/** How an agent stands: whether it can be had, is installed, and can reach a model. */

import type { ReactNode } from "react";
import type { Agent } from "sandboxagent";

import { Badge, type Tone } from "../design/index.js";

export type Standing = "unsupported" | "installing" | "missing" | "broken" | "unarmed" | "ready";

const WORDS: Record<Standing, readonly [string, Tone]> = {
  unsupported: ["Not for this machine", "neutral"],
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
