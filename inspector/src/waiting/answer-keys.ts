/** Keys that answer a card, for as long as it is the one that has them. */

import { useEffect, useRef } from "react";

/** Milliseconds that a card must have been there: a key pressed for what was there before must not answer it. */
const GRACE = 350;

/** Calls back for a key pressed anywhere but in a field, unless something is open above the page. */
export function useAnswerKeys(active: boolean, handle: (key: string) => boolean): void {
  const latest = useRef(handle);
  latest.current = handle;
  useEffect(() => {
    if (!active) return undefined;
    const since = performance.now();
    const pressed = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing)
        return;
      if (performance.now() - since < GRACE || isTyping(event.target) || document.querySelector("dialog[open]")) return;
      if (latest.current(event.key.toLowerCase())) event.preventDefault();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [active]);
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "submit"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}
