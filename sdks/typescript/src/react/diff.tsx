/** Shows how a file changes. */

import type { ReactNode } from "react";

import { UNSEEN, visible } from "./visible.js";

/** Lines that are shown around a change. */
const CONTEXT = 3;

/** What a diff shows. */
export interface DiffProps {
  /** The file. */
  readonly path: string;
  /** Its text before; absent for a new file. */
  readonly oldText?: string | null | undefined;
  /** Its text after. */
  readonly newText: string;
  /** A class of your own. */
  readonly className?: string;
}

interface Line {
  readonly change: "same" | "removed" | "added";
  readonly text: string;
}

/** A change of a file, line by line. Lines have `data-change`: `same`, `removed` or `added`. */
export function Diff({ path, oldText, newText, className = "" }: DiffProps): ReactNode {
  const lines = linesOf(oldText ?? "", newText);
  return (
    <figure className={`sa-diff ${className}`} data-new={oldText == null || undefined}>
      <figcaption>{visible(path)}</figcaption>
      <pre tabIndex={0} aria-label={`Changes of ${path}`}>
        {lines.map(({ change, text }, index) => (
          <span key={index} data-change={change}>
            <span aria-hidden>{SIGNS[change]}</span>
            {change !== "same" && <span style={UNSEEN}>{change}: </span>}
            {`${visible(text)}\n`}
          </span>
        ))}
      </pre>
    </figure>
  );
}

const SIGNS = { same: "  ", removed: "- ", added: "+ " };

/** The lines that differ, with some around them: what both texts begin and end with is left out. */
function linesOf(before: string, after: string): Line[] {
  const [old, now] = [split(before), split(after)];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  const most = Math.min(old.length, now.length) - start;
  while (end < most && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  const lines = (texts: readonly string[], change: Line["change"]): Line[] => texts.map((text) => ({ change, text }));
  return [
    ...lines(now.slice(Math.max(0, start - CONTEXT), start), "same"),
    ...lines(old.slice(start, old.length - end), "removed"),
    ...lines(now.slice(start, now.length - end), "added"),
    ...lines(now.slice(now.length - end, now.length - end + CONTEXT), "same"),
  ];
}

function split(text: string): string[] {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}
