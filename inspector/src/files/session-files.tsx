import type { ReactNode } from "react";
import type { SessionInfo } from "sandboxagent";

export function SessionFiles({ session }: { readonly session: SessionInfo }): ReactNode {
  return <p>Files of {session.cwd}</p>;
}
