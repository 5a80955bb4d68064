/** Tabs that are places: each is a link, so that one can be opened elsewhere and found again. */

import type { ReactNode } from "react";

import { Link, type Place } from "../router.js";
import styles from "./tabs.module.css";

export interface TabLink {
  readonly to: Place;
  readonly label: ReactNode;
  readonly current: boolean;
}

export function Tabs({ label, tabs }: { readonly label: string; readonly tabs: readonly TabLink[] }): ReactNode {
  return (
    <nav className={styles.tabs} aria-label={label}>
      {tabs.map(({ to, label: text, current }, index) => (
        <Link key={index} to={to} className={styles.tab} aria-current={current ? "page" : undefined}>
          {text}
        </Link>
      ))}
    </nav>
  );
}
