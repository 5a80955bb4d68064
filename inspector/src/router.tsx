/** Where the person is: the address bar is the only state, so that every place can be linked to. */

import { type AnchorHTMLAttributes, type MouseEvent, type ReactNode, useSyncExternalStore } from "react";

export const TABS = ["chat", "changes", "envelopes", "files"] as const;
export type Tab = (typeof TABS)[number];

export type Place =
  | { readonly room: "mission" }
  | { readonly room: "new" }
  | { readonly room: "agents"; readonly agent?: string }
  | { readonly room: "files"; readonly path?: string }
  | { readonly room: "replay" }
  | { readonly room: "session" | "embed"; readonly id: string; readonly tab?: Tab; readonly at?: number }
  | { readonly room: "lost"; readonly path: string };

const BASE = "/ui";
const listeners = new Set<() => void>();

/** The place that an address names. */
export function placeOf(url: URL): Place {
  const [room = "", name, ...rest] = url.pathname.slice(BASE.length + 1).split("/").map(decoded);
  const query = url.searchParams;
  if (rest.some((each) => each !== "")) return { room: "lost", path: url.pathname };
  if ((room === "sessions" || room === "embed") && name) {
    const tab = TABS.find((each) => each === query.get("tab"));
    const at = Number(query.get("at") ?? "");
    return {
      room: room === "embed" ? "embed" : "session",
      id: name,
      ...(tab && { tab }),
      ...(query.has("at") && Number.isSafeInteger(at) && at >= 0 && { at }),
    };
  }
  if (room === "agents") return { room, ...(name && { agent: name }) };
  if (name) return { room: "lost", path: url.pathname };
  if (room === "files") return { room, ...(query.has("path") && { path: query.get("path") as string }) };
  if (room === "new" || room === "replay") return { room };
  return room === "" || room === "sessions" ? { room: "mission" } : { room: "lost", path: url.pathname };
}

/** The address of a place, as a link has it. */
export function hrefOf(place: Place): string {
  switch (place.room) {
    case "mission":
      return `${BASE}/`;
    case "agents":
      return place.agent === undefined ? `${BASE}/agents` : `${BASE}/agents/${encodeURIComponent(place.agent)}`;
    case "files":
      return `${BASE}/files${queryOf({ path: place.path })}`;
    case "session":
    case "embed": {
      const folder = place.room === "embed" ? "embed" : "sessions";
      const query = { tab: place.tab === "chat" ? undefined : place.tab, at: place.at };
      return `${BASE}/${folder}/${encodeURIComponent(place.id)}${queryOf(query)}`;
    }
    case "lost":
      return place.path;
    default:
      return `${BASE}/${place.room}`;
  }
}

/** Goes to a place; `replace` leaves no step in the history, for moves that are not worth a "back". */
export function go(place: Place, options: { replace?: boolean } = {}): void {
  const href = hrefOf(place);
  if (href === window.location.pathname + window.location.search) return;
  if (options.replace) window.history.replaceState(null, "", href);
  else window.history.pushState(null, "", href);
  for (const listener of [...listeners]) listener();
}

/** The place that the address bar names. */
export function usePlace(): Place {
  const href = useSyncExternalStore(subscribe, () => window.location.href);
  return placeOf(new URL(href));
}

interface LinkProps extends Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href"> {
  readonly to: Place;
  readonly children?: ReactNode;
}

/** A link to a place: a click goes there in this tab, and everything else is the browser's. */
export function Link({ to, onClick, ...rest }: LinkProps): ReactNode {
  const clicked = (event: MouseEvent<HTMLAnchorElement>): void => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return <a {...rest} href={hrefOf(to)} onClick={clicked} />;
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
}

function queryOf(values: Record<string, string | number | undefined>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined) query.set(name, String(value));
  const text = query.toString();
  return text && `?${text}`;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
