/** The room of all files: the whole machine, or what the operator lets be seen of it. */

import { type ReactNode, useCallback, useState } from "react";

import { ErrorNote, Loading } from "../design/index.js";
import { useMachine } from "../nodes/machine.js";
import { go } from "../router.js";
import { useLoaded } from "../server/index.js";
import { FileBrowser } from "./browser.js";

export function FilesRoom({ path }: { readonly path: string | undefined }): ReactNode {
  const { node, files } = useMachine();
  const find = useCallback(async () => (await files.stat(".")).path, [files]);
  const [start] = useLoaded(path === undefined ? find : undefined);
  const [open, setOpen] = useState<string>();
  const shown = path ?? start.value;
  if (shown === undefined) {
    return start.state === "failed" ? <ErrorNote title="No files to show" error={start.error} /> : <Loading />;
  }
  return (
    <>
      <h1 className="unseen">Files</h1>
      <FileBrowser
        files={files}
        path={shown}
        open={open}
        onPath={(to) => {
          setOpen(undefined);
          go({ room: "files", path: to, node });
        }}
        onOpen={setOpen}
      />
    </>
  );
}
