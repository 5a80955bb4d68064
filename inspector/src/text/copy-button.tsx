/** Copies a text, as it is. */

import { Check, Copy } from "lucide-react";
import { useEffect, useState, type ReactNode } from "react";

export interface CopyButtonProps {
  readonly text: string;
  /** What is copied, for screen readers: `Copy` unless given. */
  readonly label?: string;
}

export function CopyButton({ text, label = "Copy" }: CopyButtonProps): ReactNode {
  const [state, setState] = useState<"idle" | "copied" | "failed">("idle");
  useEffect(() => {
    if (state === "idle") return undefined;
    const timer = setTimeout(() => setState("idle"), 1_500);
    return () => clearTimeout(timer);
  }, [state]);
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(
      () => setState("copied"),
      () => setState("failed"),
    );
  };
  const says = state === "copied" ? "Copied" : state === "failed" ? "Could not copy" : label;
  return (
    <button type="button" className="text-copy" onClick={copy} title={says} aria-label={says}>
      {state === "copied" ? <Check aria-hidden size={14} /> : <Copy aria-hidden size={14} />}
    </button>
  );
}
