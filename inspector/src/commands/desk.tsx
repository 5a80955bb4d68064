/** The palette and the list of keys, with the keys that open them; and what can be done from every room. */

import { Keyboard, LogOut, Monitor, Moon, Plus, Sun } from "lucide-react";
import { type ReactNode, Suspense, createContext, lazy, use, useMemo, useState } from "react";

import { isCovered, isTyping, useKeys } from "../design/keys.js";
import { ROOMS } from "../rooms.js";
import { go } from "../router.js";
import { useConnection, useHealth } from "../server/index.js";
import { applyTheme } from "../sidebar/theme.js";
import { type Command, useOffer } from "./commands.js";

const Help = lazy(async () => ({ default: (await import("./help.js")).Help }));
const Palette = lazy(async () => ({ default: (await import("./palette.js")).Palette }));

interface Desk {
  readonly openPalette: () => void;
  readonly openHelp: () => void;
}

const DeskContext = createContext<Desk>({ openPalette: () => undefined, openHelp: () => undefined });

export function useDesk(): Desk {
  return use(DeskContext);
}

export function CommandDesk({ children }: { readonly children: ReactNode }): ReactNode {
  const [open, setOpen] = useState<"palette" | "help">();
  const desk = useMemo(() => ({ openPalette: () => setOpen("palette"), openHelp: () => setOpen("help") }), []);
  useKeys((event) => {
    const isPalette = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
    if (isPalette && open === "palette") setOpen(undefined);
    else if (isCovered()) return;
    else if (isPalette) desk.openPalette();
    else if (event.key === "?" && !event.ctrlKey && !event.metaKey && !isTyping(event.target)) desk.openHelp();
    else return;
    event.preventDefault();
  });
  return (
    <DeskContext value={desk}>
      <Everywhere openHelp={desk.openHelp} />
      {children}
      <Suspense>
        {open === "palette" && <Palette onClose={() => setOpen((now) => (now === "palette" ? undefined : now))} />}
        {open === "help" && <Help onClose={() => setOpen(undefined)} />}
      </Suspense>
    </DeskContext>
  );
}

/** Offers what can be done from every room. */
function Everywhere({ openHelp }: { readonly openHelp: () => void }): ReactNode {
  const connection = useConnection();
  const health = useHealth();
  const rooms = ROOMS.filter(({ isThere }) => isThere === undefined || (health !== undefined && isThere(health)));
  const commands: readonly Command[] = [
    { label: "New session", icon: <Plus aria-hidden />, run: () => go({ room: "new" }) },
    ...rooms.map(({ to, label, icon }) => ({ label, icon, run: () => go(to) })),
    { label: "System theme", icon: <Monitor aria-hidden />, run: () => applyTheme("system") },
    { label: "Light theme", icon: <Sun aria-hidden />, run: () => applyTheme("light") },
    { label: "Dark theme", icon: <Moon aria-hidden />, run: () => applyTheme("dark") },
    { label: "Keyboard shortcuts", icon: <Keyboard aria-hidden />, run: openHelp },
    {
      label: "Sign out",
      icon: <LogOut aria-hidden />,
      disabled: !connection.isSignedIn,
      run: () => void connection.disconnect(),
    },
  ];
  useOffer(commands);
  return null;
}
