/** A plan as a checklist. */

import { Check, ListTodo } from "lucide-react";
import type { PlanEntry } from "@agentclientprotocol/sdk";
import type { ReactNode } from "react";

import type { PlanItem } from "sandboxagent";
import { SafeText } from "../text/safe-text.js";
import { useFold } from "./folds.js";

/** Where the plan stood in the transcript: a line, that opens; the newest one is open. */
export function PlanView({
  snapshot,
  isCurrent,
}: {
  readonly snapshot: PlanItem;
  readonly isCurrent: boolean;
}): ReactNode {
  const [open, toggle] = useFold(snapshot.key, isCurrent);
  return (
    <div className="plan">
      <button type="button" className="plan-head" aria-expanded={open} onClick={toggle}>
        <ListTodo aria-hidden size={15} />
        Plan
        <span className="plan-count">{progressOf(snapshot.entries)}</span>
      </button>
      {open && <Checklist entries={snapshot.entries} />}
    </div>
  );
}

export function Checklist({ entries }: { readonly entries: readonly PlanEntry[] }): ReactNode {
  return (
    <ol className="checklist">
      {entries.map((entry, index) => (
        <li key={index} className={`check check-${entry.status}`}>
          <span className="check-mark" aria-hidden>
            {entry.status === "completed" && <Check size={11} strokeWidth={3} />}
          </span>
          <span>
            <SafeText text={String(entry.content)} as="prose" limit={1_000} />
            <span className="unseen"> ({(entry.status ?? "pending").replace("_", " ")})</span>
          </span>
        </li>
      ))}
    </ol>
  );
}

export function progressOf(entries: readonly PlanEntry[]): string {
  return `${entries.filter(({ status }) => status === "completed").length} of ${entries.length}`;
}
