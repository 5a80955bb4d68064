/** One file: its text with colours, its image, or what it is. */

import { Download, X } from "lucide-react";
import { type ReactNode, useCallback, useEffect, useState } from "react";
import type { Entry, Files } from "sandboxagent";

import { Button, EmptyState, ErrorNote, IconButton, Loading, sizeText, toast, wordsOf } from "../design/index.js";
import { useLoaded } from "../server/index.js";
import { Code } from "../text/code.js";
import { nameOf } from "./paths.js";
import { save } from "./saving.js";
import styles from "./files.module.css";

/** Bytes of a file that are shown. */
const SHOWN = 512 * 1024;
const LARGEST_IMAGE = 20 * 1024 * 1024;
const IMAGES: Readonly<Record<string, string>> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  avif: "image/avif",
  svg: "image/svg+xml",
};

type Content =
  | { readonly kind: "text"; readonly text: string; readonly entry: Entry; readonly cut: boolean }
  | { readonly kind: "image"; readonly blob: Blob; readonly entry: Entry }
  | { readonly kind: "other"; readonly entry: Entry };

interface FileViewProps {
  readonly files: Files;
  readonly path: string;
  readonly onClose: () => void;
}

export function FileView({ files, path, onClose }: FileViewProps): ReactNode {
  const load = useCallback(() => read(files, path), [files, path]);
  const [content] = useLoaded(load);
  const download = (): void => {
    save(files, path).catch((error: unknown) => toast(wordsOf(error), "bad"));
  };
  return (
    <section className={styles.view} aria-label={nameOf(path)}>
      <header className={styles.bar}>
        <h2 className={styles.file} title={path}>
          <bdi>{nameOf(path)}</bdi>
        </h2>
        <span className={styles.facts}>{content.value && sizeText(content.value.entry.size)}</span>
        <IconButton label="Download" onClick={download}>
          <Download aria-hidden />
        </IconButton>
        <IconButton label="Close the file" onClick={onClose}>
          <X aria-hidden />
        </IconButton>
      </header>
      <div className={styles.content} tabIndex={0} role="region" aria-label={`Content of ${nameOf(path)}`}>
        {content.state === "loading" && <Loading label="Reading the file" />}
        {content.state === "failed" && <ErrorNote title="Could not open the file" error={content.error} />}
        {content.state === "there" && <Shown content={content.value} path={path} onDownload={download} />}
      </div>
    </section>
  );
}

interface ShownProps {
  readonly content: Content;
  readonly path: string;
  readonly onDownload: () => void;
}

function Shown({ content, path, onDownload }: ShownProps): ReactNode {
  if (content.kind === "image") return <Picture blob={content.blob} name={nameOf(path)} />;
  if (content.kind === "other") {
    return (
      <EmptyState title="This file is not text" actions={<Button onClick={onDownload}>Download</Button>}>
        A file of {sizeText(content.entry.size)} that cannot be shown here.
      </EmptyState>
    );
  }
  if (content.text === "") return <EmptyState title="This file is empty" />;
  return (
    <>
      <Code text={content.text} language={path} label={nameOf(path)} caption={linesText(content.text)} />
      {content.cut && (
        <p className={styles.more}>
          The first {sizeText(SHOWN)} of {sizeText(content.entry.size)}.
        </p>
      )}
    </>
  );
}

function linesText(text: string): string {
  const count = text.replace(/\n$/, "").split("\n").length;
  return count === 1 ? "1 line" : `${count.toLocaleString()} lines`;
}

function Picture({ blob, name }: { readonly blob: Blob; readonly name: string }): ReactNode {
  const [address, setAddress] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return address && <img className={styles.picture} src={address} alt={name} />;
}

async function read(files: Files, path: string): Promise<Content> {
  const entry = await files.stat(path);
  const type = IMAGES[nameOf(path).split(".").at(-1)?.toLowerCase() ?? ""];
  if (type && entry.size <= LARGEST_IMAGE) {
    return { kind: "image", blob: new Blob([(await files.read(path)) as BlobPart], { type }), entry };
  }
  if (entry.entryType !== "file") return { kind: "other", entry };
  if (entry.size === 0) return { kind: "text", text: "", entry, cut: false };
  const cut = entry.size > SHOWN;
  const bytes = await files.read(path, cut ? { start: 0, end: SHOWN } : {});
  if (bytes.subarray(0, 8_192).includes(0)) return { kind: "other", entry };
  return { kind: "text", text: new TextDecoder().decode(bytes), entry, cut };
}
