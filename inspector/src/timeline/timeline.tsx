import type { ReactNode } from "react";

export function Timeline({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  return <p>Timeline of {sessionId} {at}</p>;
}
