/** Whether the page is as narrow as on a phone. */

import { useSyncExternalStore } from "react";

const QUERY = "(max-width: 760px)";

export function useNarrow(): boolean {
  return useSyncExternalStore(subscribe, () => window.matchMedia(QUERY).matches);
}

function subscribe(listener: () => void): () => void {
  const media = window.matchMedia(QUERY);
  media.addEventListener("change", listener);
  return () => media.removeEventListener("change", listener);
}
