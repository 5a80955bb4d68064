/** Files on their way to the server, and those that are there and go with the next prompt. */

import { FileText, X } from "lucide-react";
import { useEffect, useRef, useState, type ReactNode } from "react";
import type { Files } from "sandboxagent";

import { IconButton, Spinner, sizeText, wordsOf } from "../design/index.js";
import { SafeText } from "../text/safe-text.js";
import type { Draft } from "./drafts.js";
import { fileName, upload } from "./uploads.js";

interface Uploading {
  readonly id: number;
  readonly file: File;
  readonly failure: string | undefined;
}

export interface Attaching {
  readonly uploading: readonly Uploading[];
  readonly attached: Draft["attachments"];
  readonly isBusy: boolean;
  readonly add: (files: readonly File[]) => void;
  readonly dismiss: (id: number) => void;
  readonly detach: (path: string) => void;
}

type SetAttachments = (change: Draft["attachments"]) => void;

export function useAttaching(files: Files | undefined, attached: Draft["attachments"], set: SetAttachments): Attaching {
  const [uploading, setUploading] = useState<readonly Uploading[]>([]);
  const last = useRef(0);
  /** Given before there was a place to put them. */
  const held = useRef<readonly File[]>([]);
  const latest = useRef(attached);
  latest.current = attached;
  const dismiss = (id: number): void => setUploading((now) => now.filter((each) => each.id !== id));
  const add = (given: readonly File[]): void => {
    if (files === undefined) {
      held.current = [...held.current, ...given];
      return;
    }
    for (const file of given) {
      const id = (last.current += 1);
      setUploading((now) => [...now, { id, file, failure: undefined }]);
      upload(files, file).then(
        (path) => {
          dismiss(id);
          latest.current = [...latest.current, { path, name: fileName(file.name) }];
          set(latest.current);
        },
        (error: unknown) =>
          setUploading((now) => now.map((each) => (each.id === id ? { ...each, failure: wordsOf(error) } : each))),
      );
    }
  };
  useEffect(() => {
    if (files === undefined || held.current.length === 0) return;
    add(held.current);
    held.current = [];
  }, [files]);
  const detach = (path: string): void => set(latest.current.filter((each) => each.path !== path));
  return { uploading, attached, isBusy: uploading.some(({ failure }) => failure === undefined), add, dismiss, detach };
}

export function AttachedFiles({ attaching }: { readonly attaching: Attaching }): ReactNode {
  const { uploading, attached, dismiss, detach } = attaching;
  if (uploading.length === 0 && attached.length === 0) return null;
  return (
    <ul className="attached" aria-label="Attached files">
      {attached.map(({ path, name }) => (
        <li key={path} className="chip" title={path}>
          <FileText aria-hidden size={14} />
          <SafeText text={name} limit={120} />
          <IconButton label={`Remove ${name}`} size="small" onClick={() => detach(path)}>
            <X aria-hidden />
          </IconButton>
        </li>
      ))}
      {uploading.map(({ id, file, failure }) => (
        <li key={id} className={`chip ${failure === undefined ? "" : "chip-bad"}`}>
          {failure === undefined && <Spinner label="Uploading" />}
          <SafeText text={fileName(file.name)} limit={120} />
          <span className="chip-fact">{failure ?? sizeText(file.size)}</span>
          {failure !== undefined && (
            <IconButton label={`Remove ${fileName(file.name)}`} size="small" onClick={() => dismiss(id)}>
              <X aria-hidden />
            </IconButton>
          )}
        </li>
      ))}
    </ul>
  );
}
