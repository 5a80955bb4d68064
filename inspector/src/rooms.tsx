/** The rooms that the sidebar leads to, in its order. A room is added here, to `Place`, and to `Room` in `app.tsx`. */

import { Bot, FolderOpen, History, LayoutGrid, Server } from "lucide-react";
import type { ReactNode } from "react";
import type { Health } from "sandboxagent";

import type { Place } from "./router.js";

interface RoomLink {
  readonly to: Place;
  readonly label: string;
  readonly icon: ReactNode;
  /** Whether this server has it; every server has those without. */
  readonly isThere?: (health: Health) => boolean;
}

export const ROOMS: readonly RoomLink[] = [
  { to: { room: "mission" }, label: "Mission control", icon: <LayoutGrid aria-hidden /> },
  { to: { room: "agents" }, label: "Agents", icon: <Bot aria-hidden /> },
  { to: { room: "files" }, label: "Files", icon: <FolderOpen aria-hidden /> },
  { to: { room: "replay" }, label: "Replay", icon: <History aria-hidden /> },
  {
    to: { room: "nodes" },
    label: "Nodes",
    icon: <Server aria-hidden />,
    // Of a fleet, which only a gateway has.
    isThere: ({ gateway }) => gateway !== undefined,
  },
];

/** What a room is called; those of sessions are called by their session. */
export function nameOf(room: Place["room"]): string {
  if (room === "new") return "New session";
  return ROOMS.find(({ to }) => to.room === room)?.label ?? "Session";
}
