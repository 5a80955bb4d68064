/** Light, dark, or as the system has it; kept for this browser. */

import { Store, useStore } from "../server/store.js";

export type Theme = "system" | "light" | "dark";

const KEY = "inspector.theme";
const chosen = new Store<Theme>("system");

/** The theme that was chosen last. */
export function useTheme(): Theme {
  return useStore(chosen);
}

export function keptTheme(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system";
  }
}

export function applyTheme(theme: Theme): void {
  chosen.set(theme);
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // It holds until the page is left.
  }
}
