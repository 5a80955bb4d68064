/** Files that a person attaches: onto the server's machine, into a folder of their own in the session's directory. */

import type { Files } from "sandboxagent";

/** Where they go. Git does not see it. */
export const FOLDER = ".sandbox-agent/attachments";

/** Uploads a file, and gives the path by which a prompt can name it. */
export async function upload(files: Pick<Files, "write">, file: File): Promise<string> {
  // It is there already, most often.
  await files.write(".sandbox-agent/.gitignore", "*\n", { ifNoneMatch: "*" }).catch(() => undefined);
  const mark = crypto.randomUUID().slice(0, 8);
  const { path } = await files.write(`${FOLDER}/${mark}/${fileName(file.name)}`, file);
  return path;
}

/** A name that is one name: no folders, nothing that cannot be seen, not too long. */
export function fileName(name: string): string {
  const cleaned = name
    .normalize("NFC")
    // eslint-disable-next-line no-control-regex
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069/\\]/g, "_")
    .replace(/^\.+/, "_")
    .trim();
  const short = cleaned.length > 120 ? `${cleaned.slice(0, 100)}${cleaned.slice(-20)}` : cleaned;
  return short === "" ? "file" : short;
}
