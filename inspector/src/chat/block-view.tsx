/** A piece of content: a text, an image, a sound, a link, a file that came along. */

import type { ContentBlock } from "@agentclientprotocol/sdk";
import { FileText, Link2 } from "lucide-react";
import { memo, useEffect, useState, type ReactNode } from "react";

import { Code } from "../text/code.js";
import { Markdown, followable } from "../text/markdown.js";
import { SafeText, whole } from "../text/safe-text.js";
import { spelledOut } from "../text/visible.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const SOUNDS = new Set(["audio/wav", "audio/mpeg", "audio/mp3", "audio/ogg", "audio/webm", "audio/mp4"]);

export const BlockView = memo(function BlockView({ block }: { readonly block: ContentBlock }): ReactNode {
  switch (block.type) {
    case "text":
      return <Markdown text={block.text} />;
    case "image":
      return <ImageView data={block.data} type={block.mimeType} />;
    case "audio":
      return <SoundView data={block.data} type={block.mimeType} />;
    case "resource_link":
      return <LinkView uri={block.uri} name={block.title ?? block.name} />;
    case "resource": {
      const { resource } = block;
      if ("text" in resource && typeof resource.text === "string")
        return <Code text={resource.text} language={resource.uri} label={resource.uri} />;
      return <LinkView uri={resource.uri} name={resource.uri} />;
    }
    default:
      return <Code text={JSON.stringify(block, null, 2)} language="json" />;
  }
});

/** An image that came as base64; only kinds that cannot run anything. */
export function ImageView({ data, type }: { readonly data: string; readonly type: string }): ReactNode {
  const url = useBlob(data, IMAGES.has(type) ? type : undefined);
  if (url === undefined) {
    return (
      <p className="notice">
        An image (<SafeText text={type} limit={80} />) that cannot be shown
      </p>
    );
  }
  return (
    <a href={url} target="_blank" rel="noopener noreferrer" className="image-link">
      <img src={url} alt="Shown by the agent" className="image" />
    </a>
  );
}

function SoundView({ data, type }: { readonly data: string; readonly type: string }): ReactNode {
  const url = useBlob(data, SOUNDS.has(type) ? type : undefined);
  return (
    <p className="notice">
      {url ? (
        <a href={url} download="sound">
          A sound ({type})
        </a>
      ) : (
        <>
          A sound (<SafeText text={type} limit={80} />) that cannot be played
        </>
      )}
    </p>
  );
}

function LinkView({ uri, name }: { readonly uri: string; readonly name: string }): ReactNode {
  const target = followable(uri);
  return (
    <span className="chip" title={spelledOut(whole(uri, 2_000))}>
      {uri.startsWith("file:") ? <FileText aria-hidden size={14} /> : <Link2 aria-hidden size={14} />}
      {target ? (
        <a href={target} target="_blank" rel="noopener noreferrer">
          <SafeText text={name} limit={200} />
        </a>
      ) : (
        <SafeText text={name} limit={200} />
      )}
    </span>
  );
}

/** An address within this page for bytes in base64; undefined for bytes that are none. */
export function useBlob(data: string, type: string | undefined): string | undefined {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    if (type === undefined) return undefined;
    let made: string;
    try {
      made = URL.createObjectURL(new Blob([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], { type }));
    } catch {
      return undefined;
    }
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [data, type]);
  return type === undefined ? undefined : url;
}
