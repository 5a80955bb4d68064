/** Where the person is: the address bar is the only state, so that every place can be linked to. */

import { type AnchorHTMLAttributes, type MouseEvent, type ReactNode, useMemo, useSyncExternalStore } from "react";

export const TABS = ["chat", "changes", "envelopes", "files"] as const;
export type Tab = (typeof TABS)[number];

/** Where in a session: which tab, at which moment (an event's id), looking at which event. */
export interface Spot {
  readonly tab?: Tab;
  readonly at?: number;
  readonly event?: number;
}

/** Of which node of a fleet; a server that is no gateway has none. */
interface OfNode {
  readonly node?: string | undefined;
}

export type Place =
  | { readonly room: "mission" }
  | ({ readonly room: "new"; readonly agent?: string; readonly cwd?: string } & OfNode)
  | ({ readonly room: "agents"; readonly agent?: string } & OfNode)
  | ({ readonly room: "files"; readonly path?: string } & OfNode)
  | { readonly room: "nodes" }
  | ({ readonly room: "replay" } & Spot)
  | ({ readonly room: "session" | "embed"; readonly id: string } & Spot)
  | { readonly room: "lost"; readonly path: string };

const BASE = "/ui";
const listeners = new Set<() => void>();

/** The place that an address names. */
export function placeOf(url: URL): Place {
  const [room = "", name, ...rest] = url.pathname.slice(BASE.length + 1).split("/").map(decoded);
  const query = url.searchParams;
  if (rest.some((each) => each !== "")) return { room: "lost", path: url.pathname };
  if ((room === "sessions" || room === "embed") && name) {
    return { room: room === "embed" ? "embed" : "session", id: name, ...spotOf(query) };
  }
  const node = query.get("node") ?? undefined;
  if (room === "agents") return { room, ...(name && { agent: name }), ...(node && { node }) };
  if (name) return { room: "lost", path: url.pathname };
  if (room === "files") return { room, ...(query.has("path") && { path: query.get("path") as string }), ...(node && { node }) };
  if (room === "nodes") return { room };
  if (room === "replay") return { room, ...spotOf(query) };
  if (room === "new") {
    const [agent, cwd] = [query.get("agent"), query.get("cwd")];
    return { room, ...(agent && { agent }), ...(cwd && { cwd }), ...(node && { node }) };
  }
  return room === "" || room === "sessions" ? { room: "mission" } : { room: "lost", path: url.pathname };
}

/** The address of a place, as a link has it. */
export function hrefOf(place: Place): string {
  switch (place.room) {
    case "mission":
      return `${BASE}/`;
    case "agents":
      return `${BASE}/agents${place.agent === undefined ? "" : `/${encodeURIComponent(place.agent)}`}${queryOf({ node: place.node })}`;
    case "files":
      return `${BASE}/files${queryOf({ path: place.path, node: place.node })}`;
    case "nodes":
      return `${BASE}/nodes`;
    case "session":
    case "embed": {
      const folder = place.room === "embed" ? "embed" : "sessions";
      return `${BASE}/${folder}/${encodeURIComponent(place.id)}${queryOf(spotQuery(place))}`;
    }
    case "replay":
      return `${BASE}/replay${queryOf(spotQuery(place))}`;
    case "new":
      return `${BASE}/new${queryOf({ agent: place.agent, cwd: place.cwd, node: place.node })}`;
    case "lost":
      return place.path;
    case "replay":
      return `${BASE}/replay`;
  }
}

/** How to go: `replace` leaves no step in the history; `soon` is for moves in a row, of which the address bar needs the last. */
export interface Going {
  readonly replace?: boolean;
  readonly soon?: boolean;
}

/** Browsers refuse an address that changes with every frame. */
const SOON = 250;
let coming: { href: string; timer: ReturnType<typeof setTimeout> } | undefined;

/** Goes to a place. */
export function go(place: Place, { replace = false, soon = false }: Going = {}): void {
  const href = hrefOf(place);
  if (href === hrefNow()) return;
  settle();
  if (soon) coming = { href, timer: setTimeout(settle, SOON) };
  else if (replace) window.history.replaceState(null, "", href);
  else window.history.pushState(null, "", href);
  for (const listener of [...listeners]) listener();
}

/** The address bar says where the person is, also after moves in a row. */
function settle(): void {
  if (coming === undefined) return;
  clearTimeout(coming.timer);
  window.history.replaceState(null, "", coming.href);
  coming = undefined;
}

function hrefNow(): string {
  return coming?.href ?? window.location.pathname + window.location.search;
}

/** The place where the person is. */
export function usePlace(): Place {
  const href = useSyncExternalStore(subscribe, hrefNow);
  return useMemo(() => placeOf(new URL(href, window.location.origin)), [href]);
}

/** Changes of a spot: what is undefined is taken away, what is left out stays. */
export type SpotChange = { readonly [Member in keyof Spot]?: Spot[Member] | undefined };

/** Where in a session the person is, and a way to another spot of the same session. */
export function useSpot(): { spot: Spot; move: (change: SpotChange, going?: Going) => void } {
  const place = usePlace();
  const isSpot = place.room === "session" || place.room === "embed" || place.room === "replay";
  return { spot: isSpot ? place : NOWHERE, move: moveSpot };
}

function moveSpot(change: SpotChange, going: Going = {}): void {
  const place = placeOf(new URL(hrefNow(), window.location.origin));
  if (place.room !== "session" && place.room !== "embed" && place.room !== "replay") return;
  const { tab, at, event, ...room } = place;
  const spot = Object.entries({ tab, at, event, ...change }).filter(([, value]) => value !== undefined);
  go({ ...room, ...Object.fromEntries(spot) } as Place, going);
}

const NOWHERE: Spot = {};

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
  const back = (): void => {
    clearTimeout(coming?.timer);
    coming = undefined;
    listener();
  };
  listeners.add(listener);
  window.addEventListener("popstate", back);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", back);
  };
}

function spotOf(query: URLSearchParams): Spot {
  const tab = TABS.find((each) => each === query.get("tab"));
  const [at, event] = [eventAt(query, "at"), eventAt(query, "event")];
  return { ...(tab && { tab }), ...(at !== undefined && { at }), ...(event !== undefined && { event }) };
}

function spotQuery({ tab, at, event }: Spot): Record<string, string | number | undefined> {
  return { tab: tab === "chat" ? undefined : tab, at, event };
}

/** An event's id in a query; undefined for what is none. */
function eventAt(query: URLSearchParams, name: string): number | undefined {
  const id = Number(query.get(name) ?? "");
  return query.has(name) && Number.isSafeInteger(id) && id >= 0 ? id : undefined;
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
