import type { ReactNode } from "react";

export function Chat({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  return <p>Chat of {sessionId} {at}</p>;
}
