/** The plan while it is worked on: one line, that opens. */

import { ChevronRight } from "lucide-react";
import { useState, type ReactNode } from "react";

import type { SessionView } from "sandboxagent";
import { SafeText } from "../text/safe-text.js";
import { Checklist, progressOf } from "./plan-view.js";

export function PlanBar({ view }: { readonly view: SessionView }): ReactNode {
  const [open, setOpen] = useState(false);
  const { plan } = view;
  const isOver = !plan || plan.length === 0 || plan.every(({ status }) => status === "completed");
  if (isOver || view.status === "idle" || view.status === "ended") return null;
  const now = plan.find(({ status }) => status === "in_progress") ?? plan.find(({ status }) => status === "pending");
  return (
    <div className="plan-bar">
      <button type="button" className="plan-head" aria-expanded={open} onClick={() => setOpen(!open)}>
        <ChevronRight aria-hidden size={14} className="chevron" />
        Plan
        <span className="plan-count">{progressOf(plan)}</span>
        {!open && now && (
          <span className="plan-now">
            <SafeText text={String(now.content)} as="prose" limit={200} />
          </span>
        )}
      </button>
      {open && <Checklist entries={plan} />}
    </div>
  );
}
