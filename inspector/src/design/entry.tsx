/** A name with a word about it below, each on one line; for lists of things that can be opened or chosen. */

import type { ReactNode } from "react";

import styles from "./entry.module.css";

export function Words({ name, about }: { readonly name: ReactNode; readonly about: ReactNode }): ReactNode {
  return (
    <span className={styles.words}>
      <bdi className={styles.name}>{name}</bdi>
      <span className={styles.about}>{about}</span>
    </span>
  );
}
