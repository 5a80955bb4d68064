/** Earlier prompts of the session, by the arrow keys, as in a shell. */

import { useRef, type KeyboardEvent } from "react";

import type { SessionView } from "sandboxagent";

import { wordsIn } from "../chat/written.js";

/** Handles a key; tells whether it was one of the history's. */
export function useHistory(
  view: SessionView,
  draft: string,
  setText: (text: string) => void,
): (event: KeyboardEvent<HTMLTextAreaElement>) => boolean {
  /** Where in the history, from the newest; 0 is what was being written. */
  const place = useRef({ back: 0, shown: "", own: "" });
  return (event) => {
    const up = event.key === "ArrowUp";
    if ((!up && event.key !== "ArrowDown") || event.shiftKey || event.altKey || event.ctrlKey || event.metaKey)
      return false;
    const { selectionStart, selectionEnd } = event.currentTarget;
    const walking = place.current.back > 0 && draft === place.current.shown;
    if (!walking) place.current = { back: 0, shown: draft, own: draft };
    // Arrows move the caret while there is somewhere to move it to.
    if (!walking && (!up || selectionStart !== 0 || selectionEnd !== 0 || draft !== "")) return false;
    const prompts = promptsOf(view);
    const back = Math.min(prompts.length, Math.max(0, place.current.back + (up ? 1 : -1)));
    if (back === place.current.back) return walking;
    const shown = back === 0 ? place.current.own : (prompts.at(-back) as string);
    place.current = { ...place.current, back, shown };
    setText(shown);
    return true;
  };
}

/** What was asked in a session, oldest first, each once in a row. */
export function promptsOf(view: SessionView): readonly string[] {
  const found: string[] = [];
  for (const turn of view.turns) {
    for (const item of turn.items) {
      if (item.type !== "user") continue;
      const text = wordsIn(item);
      if (text !== "" && text !== found.at(-1)) found.push(text);
    }
  }
  return found;
}
