/** A button that opens a list of things to do: a popover of the browser's, which closes by itself. */

import { type KeyboardEvent, type ReactNode, useId, useRef } from "react";

import { Button, IconButton } from "./button.js";
import styles from "./menu.module.css";

interface MenuProps {
  /** What it is about; shown unless there is an icon. */
  readonly label: string;
  readonly icon?: ReactNode;
  readonly children: ReactNode;
  readonly size?: "small" | "normal";
}

export function Menu({ label, icon, children, size = "normal" }: MenuProps): ReactNode {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const place = (): void => {
    const [shown, anchor] = [list.current, button.current?.getBoundingClientRect()];
    if (!shown || !anchor) return;
    const { offsetWidth: width, offsetHeight: height } = shown;
    const below = anchor.bottom + height + 8 < window.innerHeight;
    shown.style.left = `${Math.max(8, Math.min(anchor.right - width, window.innerWidth - width - 8))}px`;
    shown.style.top = `${below ? anchor.bottom + 4 : Math.max(8, anchor.top - height - 4)}px`;
    items(shown)[0]?.focus();
  };
  const opener = { ref: button, popoverTarget: id, size, "aria-haspopup": "menu" as const };
  return (
    <>
      {icon ? (
        <IconButton {...opener} label={label}>
          {icon}
        </IconButton>
      ) : (
        <Button {...opener}>{label}</Button>
      )}
      <div
        ref={list}
        id={id}
        popover="auto"
        role="menu"
        aria-label={label}
        className={styles.menu}
        onToggle={(event) => {
          if (event.newState === "open") place();
        }}
        onKeyDown={move}
        onClick={() => list.current?.hidePopover()}
      >
        {children}
      </div>
    </>
  );
}

interface MenuItemProps {
  readonly children: ReactNode;
  readonly onSelect: () => void;
  readonly danger?: boolean;
  readonly disabled?: boolean;
}

export function MenuItem({ children, onSelect, danger = false, disabled = false }: MenuItemProps): ReactNode {
  return (
    <button
      type="button"
      role="menuitem"
      tabIndex={-1}
      disabled={disabled}
      className={`${styles.item} ${danger ? styles.danger : ""}`}
      onClick={onSelect}
    >
      {children}
    </button>
  );
}

function items(list: HTMLElement): HTMLElement[] {
  return [...list.querySelectorAll<HTMLElement>("[role=menuitem]:not(:disabled)")];
}

function move(event: KeyboardEvent<HTMLElement>): void {
  const all = items(event.currentTarget);
  const now = all.indexOf(document.activeElement as HTMLElement);
  const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  all.at(to >= all.length ? 0 : to)?.focus();
}
