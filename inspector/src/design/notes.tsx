/** What stands where there is nothing to show: it is empty, it went wrong, or it is on its way. */

import { CircleAlert } from "lucide-react";
import type { ReactNode } from "react";

import styles from "./notes.module.css";

interface EmptyStateProps {
  readonly icon?: ReactNode;
  readonly title: string;
  readonly children?: ReactNode;
  readonly actions?: ReactNode;
  /** Nothing else is on the page: it is its heading. */
  readonly first?: boolean;
}

export function EmptyState({ icon, title, children, actions, first = false }: EmptyStateProps): ReactNode {
  return (
    <div className={styles.empty}>
      {icon && (
        <span className={styles.icon} aria-hidden>
          {icon}
        </span>
      )}
      {first ? <h1>{title}</h1> : <h2>{title}</h2>}
      {children && <div className={styles.text}>{children}</div>}
      {actions && <div className={styles.actions}>{actions}</div>}
    </div>
  );
}

interface ErrorNoteProps {
  readonly title: string;
  /** What was thrown; its words are for people. */
  readonly error?: unknown;
  readonly children?: ReactNode;
  readonly actions?: ReactNode;
}

export function ErrorNote({ title, error, children, actions }: ErrorNoteProps): ReactNode {
  const detail = wordsOf(error);
  return (
    <div role="alert" className={styles.error}>
      <CircleAlert aria-hidden />
      <div className={styles.words}>
        <strong>{title}</strong>
        {detail && <p>{detail}</p>}
        {children}
        {actions && <div className={styles.actions}>{actions}</div>}
      </div>
    </div>
  );
}

/** What an error says, for people; empty without one. */
export function wordsOf(error: unknown): string {
  if (error === undefined || error === null) return "";
  if (typeof error === "object" && "detail" in error && typeof error.detail === "string" && error.detail) {
    return error.detail;
  }
  return error instanceof Error ? error.message : String(error);
}

export function Spinner({ label = "Loading" }: { readonly label?: string }): ReactNode {
  return (
    <span className={styles.spinner} role="status">
      <span className="unseen">{label}</span>
    </span>
  );
}

/** Fills its room while something is on its way; not at once, so that what is quick does not flicker. */
export function Loading({ label = "Loading" }: { readonly label?: string }): ReactNode {
  return (
    <div className={styles.loading}>
      <Spinner label={label} />
    </div>
  );
}

export function Kbd({ children }: { readonly children: ReactNode }): ReactNode {
  return <kbd className={styles.kbd}>{children}</kbd>;
}
