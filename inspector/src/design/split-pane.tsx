/** Two rooms side by side; the border between them moves by pointer and by keyboard, and stays where it was left. */

import { type KeyboardEvent, type PointerEvent, type ReactNode, useRef, useState } from "react";

import styles from "./split-pane.module.css";

interface SplitPaneProps {
  /** What its place is kept under. */
  readonly name: string;
  /** What the first is, for those who do not see it. */
  readonly label: string;
  /** Without one, the second has all the room. */
  readonly first: ReactNode | undefined;
  readonly second: ReactNode;
  /** Width of the first, in pixels. */
  readonly initial: number;
  readonly smallest: number;
  readonly largest: number;
}

const STEP = 16;

export function SplitPane({ name, label, first, second, initial, smallest, largest }: SplitPaneProps): ReactNode {
  const [width, setWidth] = useState(() => bounded(kept(name) ?? initial));
  const from = useRef<{ x: number; width: number }>(undefined);
  function bounded(value: number): number {
    return Math.round(Math.min(largest, Math.max(smallest, value)));
  }
  const change = (value: number): void => {
    setWidth(bounded(value));
    keep(name, bounded(value));
  };
  const press = (event: PointerEvent<HTMLDivElement>): void => {
    event.currentTarget.setPointerCapture(event.pointerId);
    from.current = { x: event.clientX, width };
  };
  const drag = (event: PointerEvent<HTMLDivElement>): void => {
    if (from.current) change(from.current.width + event.clientX - from.current.x);
  };
  const key = (event: KeyboardEvent<HTMLDivElement>): void => {
    const to = { ArrowLeft: width - STEP, ArrowRight: width + STEP, Home: smallest, End: largest }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    change(to);
  };
  return (
    <div className={styles.panes}>
      {first !== undefined && (
        <aside className={styles.first} style={{ width }} aria-label={label}>
          {first}
          <div
            role="separator"
            aria-orientation="vertical"
            aria-label="Width"
            aria-valuenow={width}
            aria-valuemin={smallest}
            aria-valuemax={largest}
            tabIndex={0}
            className={styles.border}
            onPointerDown={press}
            onPointerMove={drag}
            onPointerUp={() => (from.current = undefined)}
            onKeyDown={key}
          />
        </aside>
      )}
      <div className={styles.second}>{second}</div>
    </div>
  );
}

function kept(name: string): number | undefined {
  try {
    const value = Number(localStorage.getItem(`inspector.width.${name}`) ?? "");
    return value || undefined;
  } catch {
    return undefined;
  }
}

function keep(name: string, width: number): void {
  try {
    localStorage.setItem(`inspector.width.${name}`, String(width));
  } catch {
    // A frame of another site may keep nothing.
  }
}
