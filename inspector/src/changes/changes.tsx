import type { ReactNode } from "react";

export function Changes({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  return <p>Changes of {sessionId} {at}</p>;
}
