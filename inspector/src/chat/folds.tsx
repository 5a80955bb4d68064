/** What the reader has opened and closed. Rows come and go as the transcript is scrolled; this stays. */

import { createContext, useContext, useState } from "react";

/** Open or closed by the reader, by the keys of items. */
export const Folds = createContext<Map<string, boolean>>(new Map());

/** Whether something is open, and a function that changes it; until the reader has chosen, it is as `initially` says. */
export function useFold(key: string, initially: boolean): [boolean, () => void] {
  const folds = useContext(Folds);
  const [, redraw] = useState(0);
  const open = folds.get(key) ?? initially;
  const toggle = (): void => {
    folds.set(key, !open);
    redraw((count) => count + 1);
  };
  return [open, toggle];
}
