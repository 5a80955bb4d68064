import type { ReactNode } from "react";

export function AgentsRoom({ agent }: { readonly agent: string | undefined }): ReactNode {
  return <p>Agents {agent}</p>;
}
