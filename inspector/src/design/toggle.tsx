/** Buttons that are on or off: one of several, or each for itself. */

import type { ButtonHTMLAttributes, ReactNode } from "react";

import styles from "./toggle.module.css";

interface ToggleProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "type" | "aria-pressed"> {
  readonly on: boolean;
  /** How many there are of what it stands for. */
  readonly count?: number;
}

export function Toggle({ on, count, children, className = "", ...rest }: ToggleProps): ReactNode {
  return (
    <button type="button" className={`${styles.toggle} ${className}`} aria-pressed={on} {...rest}>
      {children}
      {count !== undefined && <> <span className={styles.count}>{count.toLocaleString("en")}</span></>}
    </button>
  );
}

/** Several that belong together. */
export function Toggles({ label, children }: { readonly label: string; readonly children: ReactNode }): ReactNode {
  return (
    <div className={styles.toggles} role="group" aria-label={label}>
      {children}
    </div>
  );
}
