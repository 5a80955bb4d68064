/** The files of the session that is shown, when there is a server to ask for them. */

import type { Files } from "sandboxagent";
import { createContext, useContext } from "react";

export const SessionFiles = createContext<Pick<Files, "stat" | "read"> | undefined>(undefined);

export function useFiles(): Pick<Files, "stat" | "read"> | undefined {
  return useContext(SessionFiles);
}
