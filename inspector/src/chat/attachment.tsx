/** A file that a prompt named: an image is shown, anything else by its name. */

import { FileText } from "lucide-react";
import { useEffect, useState, type ReactNode } from "react";

import { SafeText } from "../text/safe-text.js";
import { useBlob } from "./block-view.js";
import { useFiles } from "./session-files.js";
import type { AttachedFile } from "./written.js";

const IMAGES: Readonly<Record<string, string>> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
};
const IMAGES_SENT = new Set(Object.values(IMAGES));
const LARGEST = 10 * 1024 * 1024;

export function AttachmentChip({ attachment, image }: AttachedFile): ReactNode {
  const { path, filename } = attachment;
  const name = filename ?? path.split("/").at(-1) ?? path;
  const sent = useBlob(image?.data ?? "", image && IMAGES_SENT.has(image.mimeType) ? image.mimeType : undefined);
  const read = useImage(attachment, image === undefined);
  const url = sent ?? read;
  return (
    <span className="chip" title={path}>
      {url ? <img src={url} alt={name} className="chip-image" /> : <FileText aria-hidden size={14} />}
      <SafeText text={name} limit={120} />
    </span>
  );
}

/** The image that a path names, as an address within this page. */
function useImage({ path, mime }: AttachedFile["attachment"], isWanted: boolean): string | undefined {
  const files = useFiles();
  const [url, setUrl] = useState<string>();
  const type = IMAGES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  const isImage = isWanted && type !== undefined && (mime === undefined || mime.startsWith("image/"));
  useEffect(() => {
    if (!isImage || files === undefined) return undefined;
    let current = true;
    let made: string | undefined;
    const load = async (): Promise<void> => {
      if ((await files.stat(path)).size > LARGEST) return;
      const data = await files.read(path);
      if (!current) return;
      made = URL.createObjectURL(new Blob([data as Uint8Array<ArrayBuffer>], { type }));
      setUrl(made);
    };
    // It may be gone by now; its name is still there.
    load().catch(() => undefined);
    return () => {
      current = false;
      if (made) URL.revokeObjectURL(made);
    };
  }, [files, path, type, isImage]);
  return isImage ? url : undefined;
}
