/** The side of every room: where to go, and all sessions. */

import { Plus, Search, X } from "lucide-react";
import { type ReactNode, useDeferredValue, useMemo, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import type { SessionInfo } from "sandboxagent";

import { useDesk } from "../commands/desk.js";
import { isAboutSession, wordsOf } from "../commands/found.js";
import { Ago, Badge, IconButton, Kbd, Loading, SearchField, StateDot, Words } from "../design/index.js";
import { CONTROL } from "../design/keys.js";
import { ROOMS } from "../rooms.js";
import { Link, type Place, usePlace } from "../router.js";
import { stateOf, titleOf, useHealth, useInventory } from "../server/index.js";
import { spelledOut } from "../text/visible.js";
import { Status } from "./status.js";
import styles from "./sidebar.module.css";

const HEADING_HEIGHT = 28;
const ROW_HEIGHT = 46;

/** Rooms that list the sessions themselves. */
const LISTING: ReadonlySet<Place["room"]> = new Set(["mission", "replay"]);

export function Sidebar({ onLeave }: { readonly onLeave?: () => void }): ReactNode {
  const place = usePlace();
  const { openPalette } = useDesk();
  const health = useHealth();
  const rooms = ROOMS.filter(({ isThere }) => isThere === undefined || (health !== undefined && isThere(health)));
  const { sessions, loaded, waiting } = useInventory();
  const [text, setText] = useState("");
  const wanted = useDeferredValue(text);
  const rows = useMemo(() => rowsOf(sessions, wanted), [sessions, wanted]);
  return (
    <div className={styles.sidebar}>
      <header className={styles.head}>
        <Link to={{ room: "mission" }} className={styles.brand} aria-label="Inspector">
          <svg viewBox="0 0 32 32" aria-hidden>
            <rect width="32" height="32" rx="8" />
            <path d="M9 11l5 5-5 5M16.5 21H23" />
          </svg>
          <span>Inspector</span>
        </Link>
        <Link to={{ room: "new" }} className={styles.make} title="New session" onClick={onLeave}>
          <Plus aria-hidden />
          New
        </Link>
        {onLeave && (
          <IconButton label="Close the sidebar" onClick={onLeave}>
            <X aria-hidden />
          </IconButton>
        )}
      </header>
      <nav className={styles.rooms} aria-label="Pages">
        <button
          type="button"
          onClick={() => {
            onLeave?.();
            openPalette();
          }}
        >
          <Search aria-hidden />
          <span>Go to…</span>
          <span className={styles.keys} aria-hidden>
            <Kbd>{CONTROL}</Kbd>
            <Kbd>K</Kbd>
          </span>
        </button>
        {rooms.map(({ to, label, icon }) => (
          <Link key={label} to={to} onClick={onLeave} aria-current={place.room === to.room ? "page" : undefined}>
            {icon}
            <span>{label}</span>
            {to.room === "mission" && waiting > 0 && <Badge tone="waiting">{waiting}</Badge>}
          </Link>
        ))}
      </nav>
      {LISTING.has(place.room) ? (
        <div className={styles.rest} />
      ) : (
        <>
          <SearchField
            label="Search sessions"
            className={styles.search ?? ""}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
          {loaded ? (
            <Sessions rows={rows} searching={wanted !== ""} onLeave={onLeave} />
          ) : (
            <Loading label="Loading sessions" />
          )}
        </>
      )}
      <Status />
    </div>
  );
}

type Row = { readonly heading: string; readonly count: number } | { readonly session: SessionInfo };

/** What waits for the person comes first, then what runs; the rest by the day of its last event. */
export function rowsOf(sessions: readonly SessionInfo[], text: string, now: number = Date.now()): Row[] {
  const words = wordsOf(text);
  const groups = new Map<string, SessionInfo[]>([
    ["Waiting for you", []],
    ["Running", []],
    ["Today", []],
    ["This week", []],
    ["Earlier", []],
  ]);
  for (const session of sessions) {
    if (words.length > 0 && !isAboutSession(session, words)) continue;
    groups.get(groupOf(session, now))?.push(session);
  }
  const rows: Row[] = [];
  for (const [heading, members] of groups) {
    if (members.length === 0) continue;
    members.sort((one, other) => (one.updatedAt < other.updatedAt ? 1 : -1));
    rows.push({ heading, count: members.length }, ...members.map((session) => ({ session })));
  }
  return rows;
}

function groupOf(session: SessionInfo, now: number): string {
  const state = stateOf(session);
  if (state === "waiting") return "Waiting for you";
  if (state === "running") return "Running";
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const at = Date.parse(session.updatedAt);
  if (at >= midnight) return "Today";
  return at >= midnight - 6 * 86_400_000 ? "This week" : "Earlier";
}

interface SessionsProps {
  readonly rows: readonly Row[];
  readonly searching: boolean;
  readonly onLeave: (() => void) | undefined;
}

function Sessions({ rows, searching, onLeave }: SessionsProps): ReactNode {
  const place = usePlace();
  const current = place.room === "session" ? place.id : "";
  const scroller = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: (at) => (rows[at] && "heading" in rows[at] ? HEADING_HEIGHT : ROW_HEIGHT),
    getItemKey: (at) => {
      const row = rows[at];
      return row === undefined ? at : "heading" in row ? row.heading : row.session.sessionId;
    },
    overscan: 8,
  });
  if (rows.length === 0) {
    return <p className={styles.none}>{searching ? "No session matches" : "There are no sessions yet"}</p>;
  }
  return (
    <div ref={scroller} className={styles.sessions} role="region" aria-label="Sessions" tabIndex={-1}>
      <div className={styles.all} style={{ height: list.getTotalSize() }}>
        {list.getVirtualItems().map(({ key, index, start, size }) => {
          const row = rows[index];
          if (!row) return null;
          const where = { transform: `translateY(${start}px)`, height: size };
          if ("heading" in row) {
            return (
              <h2 key={key} className={styles.heading} style={where}>
                {row.heading} <span>{row.count}</span>
              </h2>
            );
          }
          return (
            <Entry
              key={key}
              session={row.session}
              current={row.session.sessionId === current || row.session.alias === current}
              style={where}
              onLeave={onLeave}
            />
          );
        })}
      </div>
    </div>
  );
}

interface EntryProps {
  readonly session: SessionInfo;
  readonly current: boolean;
  readonly style: { readonly transform: string; readonly height: number };
  readonly onLeave: (() => void) | undefined;
}

function Entry({ session, current, style, onLeave }: EntryProps): ReactNode {
  const title = spelledOut(titleOf(session), "prose");
  return (
    <Link
      to={{ room: "session", id: session.sessionId }}
      className={styles.entry}
      style={style}
      aria-current={current ? "page" : undefined}
      title={`${title}\n${session.cwd}\n${session.sessionId}`}
      onClick={onLeave}
    >
      <StateDot state={stateOf(session)} />
      <Words
        name={title}
        about={
          <>
            {session.agent} · <bdi>{session.cwd.split("/").findLast(Boolean) ?? "/"}</bdi>
            {session.node !== undefined && ` · ${session.node}`}
          </>
        }
      />
      <span className={styles.end}>
        {session.pending > 0 ? <Badge tone="waiting">{session.pending}</Badge> : <Ago at={session.updatedAt} />}
      </span>
    </Link>
  );
}
