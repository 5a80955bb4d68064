/**
 * A prompt as the person wrote it (pure): without what the server added for its attachments.
 *
 * The log has the prompt that the agent got. In it each attached file is a link, an image, or a line at the end of the
 * text; the list of attachments names it, too.
 */

import type { UserItem } from "sandboxagent";

import type { ContentBlock, ImageContent } from "@agentclientprotocol/sdk";


export interface AttachedFile {
  readonly attachment: UserItem["attachments"][number];
  /** Its content, when it went to the agent as an image. */
  readonly image: ImageContent | undefined;
}

export interface Written {
  readonly blocks: readonly ContentBlock[];
  readonly files: readonly AttachedFile[];
}

export function writtenIn({ blocks, attachments }: Pick<UserItem, "blocks" | "attachments">): Written {
  if (attachments.length === 0) return { blocks, files: [] };
  const added = new Map<ContentBlock, string>();
  for (const block of blocks) {
    const path = addedPath(block);
    const found = path === undefined ? undefined : attachments.find((each) => isAt(path, each.path));
    if (found) added.set(block, found.path);
  }
  const files = attachments.map((attachment) => {
    const image = blocks.find((block) => block.type === "image" && added.get(block) === attachment.path);
    return { attachment, image: image?.type === "image" ? image : undefined };
  });
  const kept = blocks.filter((block) => !added.has(block)).map((block) => unmentioned(block, attachments));
  return { blocks: kept.filter((block) => block.type !== "text" || block.text !== ""), files };
}

/** Its words alone, in one text. */
export function wordsIn(message: Pick<UserItem, "blocks" | "attachments">): string {
  return writtenIn(message)
    .blocks.flatMap((block) => (block.type === "text" ? [block.text] : []))
    .join("\n");
}

function addedPath(block: ContentBlock): string | undefined {
  const uri = block.type === "resource_link" || block.type === "image" ? block.uri : undefined;
  return typeof uri === "string" && uri.startsWith("file://") ? uri.slice("file://".length) : undefined;
}

/** Whether a path of the server's, which may be encoded, is that of an attachment, which may be relative. */
function isAt(path: string, attached: string): boolean {
  const wanted = attached.replace(/^\.\//, "");
  return [path, decoded(path)].some((each) => each === wanted || (!wanted.startsWith("/") && each.endsWith(`/${wanted}`)));
}

/** The text without the list of files at its end. */
function unmentioned(block: ContentBlock, attachments: UserItem["attachments"]): ContentBlock {
  if (block.type !== "text") return block;
  const found = /\n\nAttachments:\n((?:- [^\n]+\n)+)$/.exec(block.text);
  const paths = found?.[1]?.trimEnd().split("\n").map((line) => line.slice(2).replace(/^file:\/\//, "")) ?? [];
  const isAdded = found !== null && paths.every((path) => attachments.some((each) => isAt(path, each.path)));
  return isAdded ? { ...block, text: block.text.slice(0, found.index) } : block;
}

function decoded(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}
