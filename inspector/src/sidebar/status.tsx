/** How the connection stands, and the few settings of the page. */

import { Keyboard, LogOut, Monitor, Moon, Settings2, Sun } from "lucide-react";
import { type ReactNode, useEffect, useState } from "react";

import { useDesk } from "../commands/desk.js";
import { Menu, MenuItem } from "../design/index.js";
import { useConnection, useConnectionView, useHealth } from "../server/index.js";
import { applyTheme, useTheme } from "./theme.js";
import styles from "./sidebar.module.css";

/** Milliseconds that a break may last before it is worth a word. */
const BRIEF = 600;

export function Status(): ReactNode {
  const connection = useConnection();
  const health = useHealth();
  const theme = useTheme();
  const away = useAway();
  const { openHelp } = useDesk();
  const degraded = health?.status === "degraded";
  return (
    <footer className={styles.status}>
      <span className={`${styles.light} ${away || degraded ? styles.away : ""}`} aria-hidden />
      <span className={styles.state} title={health?.detail}>
        {away ? "Reconnecting…" : degraded ? "Degraded" : "Connected"}
      </span>
      <span className={styles.version}>{health?.version}</span>
      <Menu label="Settings" icon={<Settings2 aria-hidden />} size="small">
        <MenuItem onSelect={() => applyTheme("system")}>
          <Monitor aria-hidden /> System theme {theme === "system" && "✓"}
        </MenuItem>
        <MenuItem onSelect={() => applyTheme("light")}>
          <Sun aria-hidden /> Light {theme === "light" && "✓"}
        </MenuItem>
        <MenuItem onSelect={() => applyTheme("dark")}>
          <Moon aria-hidden /> Dark {theme === "dark" && "✓"}
        </MenuItem>
        <MenuItem onSelect={openHelp}>
          <Keyboard aria-hidden /> Keyboard shortcuts
        </MenuItem>
        {connection.isSignedIn && (
          <MenuItem onSelect={() => void connection.disconnect()}>
            <LogOut aria-hidden /> Sign out
          </MenuItem>
        )}
      </Menu>
    </footer>
  );
}

/** Whether the connection has been away for longer than a moment. */
export function useAway(): boolean {
  const { state } = useConnectionView();
  const [away, setAway] = useState(false);
  useEffect(() => {
    if (state !== "reconnecting") {
      setAway(false);
      return undefined;
    }
    const timer = setTimeout(() => setAway(true), BRIEF);
    return () => clearTimeout(timer);
  }, [state]);
  return away;
}
