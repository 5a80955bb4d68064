/** A file of the server's machine, saved by the browser. */

import type { Files } from "sandboxagent";

import { nameOf } from "./paths.js";

export async function save(files: Files, path: string): Promise<void> {
  // Not by a link: the token belongs into a header.
  const content = await files.read(path);
  const address = URL.createObjectURL(new Blob([content as BlobPart]));
  const link = document.createElement("a");
  link.href = address;
  link.download = nameOf(path);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
