/** Files of the server's machine: looking through directories, seeing a file, bringing files in and out. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { Download, File as FileIcon, FilePlus2, Folder, FolderPlus, Link2, RefreshCw, Trash2, Upload } from "lucide-react";
import { type DragEvent, type ReactNode, useRef, useState } from "react";
import type { Entry, Files } from "sandboxagent";

import { Ago, Button, Dialog, EmptyState, ErrorNote, Field, IconButton, Input, Loading, sizeText, toast, wordsOf } from "../design/index.js";
import { useEntries } from "./entries.js";
import { save } from "./saving.js";
import { FileView } from "./file-view.js";
import { crumbsOf, joined, parentOf } from "./paths.js";
import styles from "./files.module.css";

interface FileBrowserProps {
  readonly files: Files;
  /** What is shown: a directory, absolute. */
  readonly path: string;
  /** A file in it that is open. */
  readonly open: string | undefined;
  readonly onPath: (path: string) => void;
  readonly onOpen: (path: string | undefined) => void;
}

const ROW = 32;

export function FileBrowser({ files, path, open, onPath, onOpen }: FileBrowserProps): ReactNode {
  const [listing, reload] = useEntries(files, path);
  const [over, setOver] = useState(false);
  const [busy, setBusy] = useState("");
  const [asking, setAsking] = useState<{ kind: "folder" } | { kind: "delete"; entry: Entry }>();
  const chosen = useRef<HTMLInputElement>(null);
  const work = async (what: string, act: () => Promise<unknown>): Promise<void> => {
    setBusy(what);
    try {
      await act();
    } catch (error) {
      toast(wordsOf(error), "bad");
    } finally {
      setBusy("");
      reload();
    }
  };
  const upload = (given: FileList | null): void => {
    const all = [...(given ?? [])];
    if (all.length === 0) return;
    void work(`Uploading ${all.length === 1 ? all[0]?.name : `${all.length} files`}`, async () => {
      for (const file of all) await files.write(joined(path, file.name), file);
      toast(all.length === 1 ? `Uploaded ${all[0]?.name}` : `Uploaded ${all.length} files`);
    });
  };
  const dropped = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    upload(event.dataTransfer.files);
  };
  return (
    <div
      className={`${styles.browser} ${open === undefined ? "" : styles.reading} ${over ? styles.over : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={dropped}
    >
      <section className={styles.list} aria-label="Entries">
        <header className={styles.bar}>
          <Crumbs path={path} onPath={onPath} />
          <span className={styles.busy} role="status">
            {busy}
          </span>
          <IconButton label="Upload files" onClick={() => chosen.current?.click()}>
            <Upload aria-hidden />
          </IconButton>
          <IconButton label="New folder" onClick={() => setAsking({ kind: "folder" })}>
            <FolderPlus aria-hidden />
          </IconButton>
          <IconButton label="Refresh" onClick={reload}>
            <RefreshCw aria-hidden />
          </IconButton>
          <input
            ref={chosen}
            type="file"
            multiple
            hidden
            aria-label="Files to upload"
            onChange={(event) => {
              upload(event.target.files);
              event.target.value = "";
            }}
          />
        </header>
        {listing.state === "failed" && (
          <div className={styles.padded}>
            <ErrorNote
              title="Could not open the directory"
              error={listing.error}
              actions={<Button onClick={() => onPath(parentOf(path))}>Go up</Button>}
            />
          </div>
        )}
        {listing.state === "loading" && !listing.value && <Loading label="Reading the directory" />}
        {listing.value && listing.state !== "failed" && (
          <Entries
            key={path}
            entries={listing.value.entries}
            truncated={listing.value.truncated}
            open={open}
            onEntry={(entry) => {
              if (entry.entryType === "directory") onPath(entry.path);
              else if (entry.entryType === "symlink") void follow(files, entry, onPath, onOpen);
              else onOpen(entry.path);
            }}
            onDownload={(entry) => void work(`Downloading ${entry.name}`, () => save(files, entry.path))}
            onDelete={(entry) => setAsking({ kind: "delete", entry })}
          />
        )}
      </section>
      {open !== undefined && <FileView key={open} files={files} path={open} onClose={() => onOpen(undefined)} />}
      {asking?.kind === "folder" && (
        <NewFolder
          onClose={() => setAsking(undefined)}
          onName={(name) => {
            setAsking(undefined);
            void work("", () => files.mkdir(joined(path, name)));
          }}
        />
      )}
      {asking?.kind === "delete" && (
        <Dialog
          title={`Delete ${asking.entry.name}?`}
          onClose={() => setAsking(undefined)}
          actions={
            <>
              <Button onClick={() => setAsking(undefined)}>Keep it</Button>
              <Button
                look="danger"
                onClick={() => {
                  const { entry } = asking;
                  setAsking(undefined);
                  if (open === entry.path) onOpen(undefined);
                  void work(`Deleting ${entry.name}`, () =>
                    files.delete(entry.path, { recursive: entry.entryType === "directory" }),
                  );
                }}
              >
                Delete
              </Button>
            </>
          }
        >
          {asking.entry.entryType === "directory" ? "The directory and everything in it is gone then." : "The file is gone then."}
        </Dialog>
      )}
    </div>
  );
}

async function follow(
  files: Files,
  link: Entry,
  onPath: (path: string) => void,
  onOpen: (path: string) => void,
): Promise<void> {
  try {
    const target = await files.stat(link.path);
    if (target.entryType === "directory") onPath(link.path);
    else onOpen(link.path);
  } catch (error) {
    toast(wordsOf(error), "bad");
  }
}

export function Crumbs({ path, onPath }: { readonly path: string; readonly onPath: (path: string) => void }): ReactNode {
  const crumbs = crumbsOf(path);
  return (
    <nav className={styles.crumbs} aria-label="Path">
      {crumbs.map(({ name, path: to }, at) => (
        <button
          key={to}
          type="button"
          aria-current={at === crumbs.length - 1 ? "location" : undefined}
          onClick={() => onPath(to)}
        >
          <bdi>{name}</bdi>
        </button>
      ))}
    </nav>
  );
}

interface EntriesProps {
  readonly entries: readonly Entry[];
  readonly truncated: boolean;
  readonly open: string | undefined;
  readonly onEntry: (entry: Entry) => void;
  readonly onDownload: (entry: Entry) => void;
  readonly onDelete: (entry: Entry) => void;
}

function Entries({ entries, truncated, open, onEntry, onDownload, onDelete }: EntriesProps): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: entries.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 12,
  });
  if (entries.length === 0) {
    return (
      <EmptyState icon={<FilePlus2 />} title="This directory is empty">
        Drop files here to upload them.
      </EmptyState>
    );
  }
  return (
    <div ref={scroller} className={styles.entries} tabIndex={-1}>
      <ul style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map(({ index, start, key }) => {
          const entry = entries[index];
          if (!entry) return null;
          return (
            <li key={key} style={{ transform: `translateY(${start}px)` }} className={entry.path === open ? styles.open : ""}>
              <button type="button" className={styles.entry} onClick={() => onEntry(entry)}>
                <EntryIcon entry={entry} />
                <bdi className={styles.name}>{entry.name}</bdi>
                <span className={styles.size}>{entry.entryType === "file" ? sizeText(entry.size) : ""}</span>
                <span className={styles.time}>
                  <Ago at={entry.modified} />
                </span>
              </button>
              <span className={styles.acts}>
                {entry.entryType === "file" && (
                  <IconButton size="small" label={`Download ${entry.name}`} onClick={() => onDownload(entry)}>
                    <Download aria-hidden />
                  </IconButton>
                )}
                <IconButton size="small" label={`Delete ${entry.name}`} onClick={() => onDelete(entry)}>
                  <Trash2 aria-hidden />
                </IconButton>
              </span>
            </li>
          );
        })}
      </ul>
      {truncated && <p className={styles.more}>There are more entries than are shown.</p>}
    </div>
  );
}

export function EntryIcon({ entry }: { readonly entry: Entry }): ReactNode {
  if (entry.entryType === "directory") return <Folder aria-label="Directory" className={styles.folder} />;
  if (entry.entryType === "symlink") return <Link2 aria-label="Link" />;
  return <FileIcon aria-label="File" />;
}

function NewFolder({ onClose, onName }: { readonly onClose: () => void; readonly onName: (name: string) => void }): ReactNode {
  const [name, setName] = useState("");
  const wrong = name.includes("/") ? "A name has no slash." : undefined;
  return (
    <Dialog
      title="New folder"
      onClose={onClose}
      actions={
        <Button look="primary" type="submit" form="new-folder" disabled={!name.trim() || wrong !== undefined}>
          Make it
        </Button>
      }
    >
      <form
        id="new-folder"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim() && !wrong) onName(name.trim());
        }}
      >
        <Field label="Name" error={wrong}>
          {(given) => <Input {...given} value={name} onChange={(event) => setName(event.target.value)} />}
        </Field>
      </form>
    </Dialog>
  );
}

