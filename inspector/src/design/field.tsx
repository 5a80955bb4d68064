/** Fields of forms: a label, what is entered, and a word about it. */

import { type ComponentProps, type ReactNode, type SelectHTMLAttributes, type TextareaHTMLAttributes, useId } from "react";

import styles from "./field.module.css";

interface FieldProps {
  readonly label: string;
  readonly hint?: ReactNode;
  readonly error?: string | undefined;
  readonly children: (given: { id: string; "aria-describedby": string; "aria-invalid": boolean }) => ReactNode;
}

export function Field({ label, hint, error, children }: FieldProps): ReactNode {
  const id = useId();
  return (
    <div className={styles.field}>
      <label htmlFor={id}>{label}</label>
      {children({ id, "aria-describedby": `${id}-hint`, "aria-invalid": error !== undefined })}
      <div id={`${id}-hint`} className={error ? styles.wrong : styles.hint}>
        {error ?? hint}
      </div>
    </div>
  );
}

export function Input({ className = "", ...rest }: ComponentProps<"input">): ReactNode {
  return <input {...rest} className={`${styles.input} ${className}`} />;
}

export function TextArea({ className = "", ...rest }: TextareaHTMLAttributes<HTMLTextAreaElement>): ReactNode {
  return <textarea {...rest} className={`${styles.input} ${styles.area} ${className}`} />;
}

export function Select({ className = "", ...rest }: SelectHTMLAttributes<HTMLSelectElement>): ReactNode {
  return <select {...rest} className={`${styles.input} ${styles.select} ${className}`} />;
}
