/** Short news in the corner of the page: something was copied, something failed elsewhere. */

import { type ReactNode, useSyncExternalStore } from "react";

import styles from "./toast.module.css";

interface Toast {
  readonly id: number;
  readonly text: string;
  readonly tone: "plain" | "bad";
}

const LASTS = 4_000;
const MAX_TOASTS = 3;
const listeners = new Set<() => void>();
let shown: readonly Toast[] = [];
let last = 0;

/** Shows a text for a few seconds. */
export function toast(text: string, tone: Toast["tone"] = "plain"): void {
  const one = { id: (last += 1), text, tone };
  change([...shown, one].slice(-MAX_TOASTS));
  setTimeout(() => change(shown.filter((each) => each !== one)), tone === "bad" ? 2 * LASTS : LASTS);
}

export function Toasts(): ReactNode {
  const toasts = useSyncExternalStore(subscribe, () => shown);
  return (
    <div className={styles.toasts} role="status" aria-live="polite">
      {toasts.map(({ id, text, tone }) => (
        <div key={id} className={`${styles.toast} ${styles[tone]}`}>
          {text}
        </div>
      ))}
    </div>
  );
}

/** Copies a text, and says so. */
export async function copy(text: string, what = "Copied"): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast("The browser does not let this page copy", "bad");
  }
}

function change(next: readonly Toast[]): void {
  shown = next;
  for (const listener of [...listeners]) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
