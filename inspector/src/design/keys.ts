/** Keys of the whole page. */

import { useEffect, useRef } from "react";

/** Whether letters go into a field. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Whether something stands over the page and has the keys. */
export function isCovered(): boolean {
  return document.querySelector("dialog[open]") !== null;
}

/** The key that goes with a letter for what the page itself does, as this machine's keyboard calls it. */
export const CONTROL = /Mac|iP(?:hone|ad|od)/.test(navigator.platform) ? "⌘" : "Ctrl";

/** Calls back for each key that is pressed anywhere on the page. */
export function useKeys(handle: (event: KeyboardEvent) => void): void {
  const latest = useRef(handle);
  useEffect(() => {
    latest.current = handle;
  });
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (!event.defaultPrevented && !event.isComposing) latest.current(event);
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}
