/** What the session has used: how full the context is, tokens, cost. */

import type { ReactNode } from "react";

import type { SessionUsage } from "sandboxagent";
import { countText } from "../chat/row-view.js";

const AROUND = 2 * Math.PI * 6;

export function UsageView({ usage }: { readonly usage: SessionUsage }): ReactNode {
  const { context, tokens, cost } = usage;
  if (!context && !tokens && !cost) return null;
  const part = context && context.size > 0 ? Math.min(1, context.used / context.size) : undefined;
  return (
    <span className="usage">
      {part !== undefined && context && (
        <span
          className="usage-context"
          title={`${context.used.toLocaleString("en")} of ${context.size.toLocaleString("en")} tokens are in the context`}
        >
          <svg
            width="16"
            height="16"
            viewBox="0 0 16 16"
            role="img"
            aria-label={`Context ${Math.round(part * 100)} % full`}
          >
            <circle cx="8" cy="8" r="6" className="usage-ring" />
            <circle
              cx="8"
              cy="8"
              r="6"
              className={`usage-part ${part > 0.85 ? "usage-full" : ""}`}
              strokeDasharray={`${part * AROUND} ${AROUND}`}
            />
          </svg>
          {Math.round(part * 100)}%
        </span>
      )}
      {tokens && (
        <span title={`${tokens.input.toLocaleString("en")} in, ${tokens.output.toLocaleString("en")} out`}>
          {countText(tokens.total)} tokens
        </span>
      )}
      {cost && <span title="Cost so far">{costText(cost.amount, cost.currency)}</span>}
    </span>
  );
}

export function costText(amount: number, currency: string): string {
  try {
    return new Intl.NumberFormat("en", {
      style: "currency",
      currency,
      maximumFractionDigits: amount < 1 ? 4 : 2,
    }).format(amount);
  } catch {
    return `${amount} ${currency}`;
  }
}
