import type { ReactNode } from "react";

export function Envelopes({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  return <p>Envelopes of {sessionId} {at}</p>;
}
