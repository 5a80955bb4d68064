/** Choosing a directory of the server's machine: typed, or found. */

import { CornerLeftUp, Folder, FolderOpen } from "lucide-react";
import { type ReactNode, useId, useState } from "react";

import { Button, Dialog, ErrorNote, Field, Input, Loading } from "../design/index.js";
import { Crumbs } from "../files/browser.js";
import { useEntries } from "../files/entries.js";
import { parentOf } from "../files/paths.js";
import { useMachine } from "../nodes/machine.js";
import styles from "./new-session.module.css";

interface DirectoryFieldProps {
  readonly value: string;
  readonly onChange: (path: string) => void;
  /** Directories of other sessions. */
  readonly known: readonly string[];
}

export function DirectoryField({ value, onChange, known }: DirectoryFieldProps): ReactNode {
  const [picking, setPicking] = useState(false);
  const list = useId();
  const wrong = value !== "" && !value.startsWith("/") ? "A directory begins with a slash." : undefined;
  return (
    <>
      <Field label="Directory" hint="Where the agent works, on the server's machine." error={wrong}>
        {(given) => (
          <div className={styles.row}>
            <Input
              {...given}
              className={styles.path ?? ""}
              list={list}
              spellCheck={false}
              value={value}
              onChange={(event) => onChange(event.target.value)}
            />
            <Button onClick={() => setPicking(true)}>
              <FolderOpen aria-hidden /> Browse
            </Button>
          </div>
        )}
      </Field>
      <datalist id={list}>
        {known.map((path) => (
          <option key={path} value={path} />
        ))}
      </datalist>
      {picking && (
        <Picker
          start={value.startsWith("/") ? value : "/"}
          onClose={() => setPicking(false)}
          onPick={(path) => {
            setPicking(false);
            onChange(path);
          }}
        />
      )}
    </>
  );
}

interface PickerProps {
  readonly start: string;
  readonly onClose: () => void;
  readonly onPick: (path: string) => void;
}

function Picker({ start, onClose, onPick }: PickerProps): ReactNode {
  const { files } = useMachine();
  const [path, setPath] = useState(start);
  const [hidden, setHidden] = useState(false);
  const [listing] = useEntries(files, path);
  const folders = (listing.value?.entries ?? []).filter(
    ({ entryType, name }) => (entryType === "directory" || entryType === "symlink") && (hidden || !name.startsWith(".")),
  );
  return (
    <Dialog
      wide
      title="Choose a directory"
      onClose={onClose}
      actions={
        <>
          <label className={styles.hidden}>
            <input type="checkbox" checked={hidden} onChange={(event) => setHidden(event.target.checked)} /> Show hidden
          </label>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" disabled={listing.state === "failed"} onClick={() => onPick(path)}>
            Use this directory
          </Button>
        </>
      }
    >
      <Crumbs path={path} onPath={setPath} />
      <div className={styles.folders}>
        {listing.state === "failed" && <ErrorNote title="Could not open this directory" error={listing.error} />}
        {listing.state === "loading" && !listing.value && <Loading label="Reading the directory" />}
        <ul>
          {path !== "/" && (
            <li>
              <button type="button" onClick={() => setPath(parentOf(path))}>
                <CornerLeftUp aria-hidden /> Up
              </button>
            </li>
          )}
          {listing.state !== "failed" &&
            folders.map((folder) => (
              <li key={folder.path}>
                <button type="button" onClick={() => setPath(folder.path)}>
                  <Folder aria-hidden /> <bdi>{folder.name}</bdi>
                </button>
              </li>
            ))}
        </ul>
        {listing.state === "there" && folders.length === 0 && <p className={styles.none}>No directories in here.</p>}
      </div>
    </Dialog>
  );
}
