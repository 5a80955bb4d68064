/** The entries of a directory, folders first; a bounded number of them. */

import { useCallback } from "react";
import type { Entry, Files } from "sandboxagent";

import { type Loaded, useLoaded } from "../server/index.js";

/** More than a person looks through; the rest is named as a number. */
const MAX_ENTRIES = 5_000;

export interface Listing {
  readonly entries: readonly Entry[];
  /** There are more than are listed. */
  readonly truncated: boolean;
}

export function useEntries(files: Files, path: string | undefined): [Loaded<Listing>, () => void] {
  const load = useCallback(async () => await list(files, path ?? "."), [files, path]);
  return useLoaded(path === undefined ? undefined : load);
}

async function list(files: Files, path: string): Promise<Listing> {
  const entries: Entry[] = [];
  let truncated = false;
  for await (const entry of files.list(path)) {
    if (entries.length === MAX_ENTRIES) {
      truncated = true;
      break;
    }
    entries.push(entry);
  }
  return { entries: entries.sort(byKindAndName), truncated };
}

const names = new Intl.Collator(undefined, { numeric: true });

function byKindAndName(one: Entry, other: Entry): number {
  const folders = Number(other.entryType === "directory") - Number(one.entryType === "directory");
  return folders || names.compare(one.name, other.name);
}
