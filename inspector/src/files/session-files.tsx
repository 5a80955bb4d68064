/** The files of one session: its directory, and what is below. */

import { type ReactNode, useMemo, useState } from "react";
import type { SessionInfo } from "sandboxagent";

import { useServer } from "../server/index.js";
import { FileBrowser } from "./browser.js";

export function SessionFiles({ session }: { readonly session: SessionInfo }): ReactNode {
  const { client } = useServer();
  const { node } = session;
  const files = useMemo(() => (node === undefined ? client.files : client.files.ofNode(node)), [client, node]);
  const [path, setPath] = useState(session.cwd);
  const [open, setOpen] = useState<string>();
  return (
    <FileBrowser
      files={files}
      path={path}
      open={open}
      onPath={(to) => {
        setOpen(undefined);
        setPath(to);
      }}
      onOpen={setOpen}
    />
  );
}
