/** A word or a number that says how something stands. */

import type { ReactNode } from "react";

import styles from "./badge.module.css";

export type Tone = "neutral" | "accent" | "ok" | "waiting" | "bad";

export function Badge({ tone = "neutral", children }: { readonly tone?: Tone; readonly children: ReactNode }): ReactNode {
  return <span className={`${styles.badge} ${styles[tone]}`}>{children}</span>;
}

/** How a session stands, as a dot; the word is there for those who do not see it. */
export function StateDot({ state }: { readonly state: "running" | "waiting" | "idle" | "ended" }): ReactNode {
  return (
    <span className={`${styles.dot} ${styles[`is-${state}`]}`}>
      <span className="unseen">{STATES[state]}</span>
    </span>
  );
}

export const STATES = { running: "Running", waiting: "Waiting for you", idle: "Idle", ended: "Ended" } as const;
