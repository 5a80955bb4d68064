/** A field that narrows down what is shown beside it. */

import { Search } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";

import { Input } from "./field.js";
import styles from "./search-field.module.css";

interface SearchFieldProps extends Omit<ComponentProps<"input">, "type" | "placeholder"> {
  /** What is searched; its placeholder, and its name. */
  readonly label: string;
}

export function SearchField({ label, className = "", ...rest }: SearchFieldProps): ReactNode {
  return (
    <label className={`${styles.search} ${className}`}>
      <Search aria-hidden />
      <span className="unseen">{label}</span>
      <Input type="search" placeholder={label} {...rest} />
    </label>
  );
}
