/** A window over the page that has to be dealt with first: the browser's own, so focus and Escape are right. */

import { X } from "lucide-react";
import { type ReactNode, useEffect, useId, useRef } from "react";

import { IconButton } from "./button.js";
import styles from "./dialog.module.css";

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ReactNode;
  /** Buttons at its end. */
  readonly actions?: ReactNode;
  readonly wide?: boolean;
}

export function Dialog({ title, onClose, children, actions, wide = false }: DialogProps): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const name = useId();
  useEffect(() => {
    const shown = dialog.current;
    if (shown && !shown.open) {
      shown.showModal();
      // A field is what it is about; the browser would choose the button that closes it.
      shown.querySelector<HTMLElement>("input, textarea, select")?.focus();
    }
    return () => shown?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className={`${styles.dialog} ${wide ? styles.wide : ""}`}
      aria-labelledby={name}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div className={styles.inside}>
        <header className={styles.head}>
          <h2 id={name}>{title}</h2>
          <IconButton label="Close" onClick={onClose}>
            <X aria-hidden />
          </IconButton>
        </header>
        <div className={styles.body}>{children}</div>
        {actions && <footer className={styles.actions}>{actions}</footer>}
      </div>
    </dialog>
  );
}
