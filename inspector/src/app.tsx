/** The frame of the page: the sidebar, the room that the address names, and what stands before both. */

import { CloudOff, Compass, Menu as MenuIcon } from "lucide-react";
import { Component, type ReactNode, Suspense, lazy, useEffect, useRef, useState } from "react";

import { CommandDesk } from "./commands/desk.js";
import { Connect } from "./connect/connect.js";
import { Button, EmptyState, IconButton, Loading, SplitPane, Toasts } from "./design/index.js";
import { useNarrow } from "./design/narrow.js";
import { LogsOfServer } from "./log/logs-of-server.js";
import { Mission } from "./mission/mission.js";
import { OnMachine } from "./nodes/machine.js";
import { type Place, go, hrefOf, usePlace } from "./router.js";
import { nameOf } from "./rooms.js";
import { Connected, titleOf, useInventory, useSessionInfo } from "./server/index.js";
import { Sidebar } from "./sidebar/sidebar.js";
import { useAway } from "./sidebar/status.js";
import styles from "./app.module.css";

const AgentsRoom = lazy(async () => ({ default: (await import("./agents/agents-room.js")).AgentsRoom }));
const FilesRoom = lazy(async () => ({ default: (await import("./files/files-room.js")).FilesRoom }));
const NewSession = lazy(async () => ({ default: (await import("./new-session/new-session.js")).NewSession }));
const SessionRoom = lazy(async () => ({ default: (await import("./session/session-room.js")).SessionRoom }));
const NodesRoom = lazy(async () => ({ default: (await import("./nodes/nodes-room.js")).NodesRoom }));
const Replay = lazy(async () => ({ default: (await import("./replay/replay.js")).Replay }));

/** Rooms that have a head of their own, with room in it for the button that opens the sidebar. */
const HEADS: Partial<Record<Place["room"], "own">> = { session: "own" };

export function App(): ReactNode {
  return (
    <>
      <Connected otherwise={<Connect />}>
        <LogsOfServer>
          <Frame />
        </LogsOfServer>
      </Connected>
      <Toasts />
    </>
  );
}

function Frame(): ReactNode {
  const place = usePlace();
  const narrow = useNarrow();
  const [open, setOpen] = useState(false);
  usePageTitle(place);
  useEffect(() => setOpen(false), [place.room, narrow]);
  const room = (
    <main className={styles.main} tabIndex={-1}>
      <Fence key={hrefOf(place).split("?")[0] ?? ""}>
        <Suspense fallback={<Loading />}>
          <Room place={place} />
        </Suspense>
      </Fence>
    </main>
  );
  if (place.room === "embed") {
    return (
      <div className={styles.stack}>
        <AwayBanner />
        <div className={styles.frame}>{room}</div>
      </div>
    );
  }
  return (
    <CommandDesk>
      <SplitPane
        name="sidebar"
        label="Sidebar"
        initial={264}
        smallest={200}
        largest={420}
        // The room stays the same one, with all that was opened and written in it, when a phone is turned.
        first={narrow ? undefined : <Sidebar />}
        second={
          <div className={styles.stack}>
            <AwayBanner />
            <div className={styles.frame} data-head={narrow ? HEADS[place.room] : undefined}>
              {narrow && (
                <header className={styles.bar}>
                  <IconButton label="Open the sidebar" aria-expanded={open} onClick={() => setOpen(true)}>
                    <MenuIcon aria-hidden />
                  </IconButton>
                  <span>{nameOf(place.room)}</span>
                </header>
              )}
              {room}
            </div>
            {narrow && open && <Drawer onClose={() => setOpen(false)} />}
          </div>
        }
      />
    </CommandDesk>
  );
}

/** Says above every room that the connection is lost. */
function AwayBanner(): ReactNode {
  const away = useAway();
  return (
    <div role="status" className={styles.away}>
      {away && (
        <>
          <CloudOff aria-hidden />
          <span>
            <strong>The connection to the server is lost.</strong> Reconnecting… What you see may be old.
          </span>
        </>
      )}
    </div>
  );
}

/** The sidebar over the room; Escape and a click beside it close it. */
function Drawer({ onClose }: { readonly onClose: () => void }): ReactNode {
  const sheet = useRef<HTMLDialogElement>(null);
  useEffect(() => sheet.current?.showModal(), []);
  return (
    <dialog
      ref={sheet}
      className={styles.sheet}
      aria-label="Sidebar"
      onClose={onClose}
      onClick={(event) => event.target === sheet.current && onClose()}
    >
      <Sidebar onLeave={onClose} />
    </dialog>
  );
}

function Room({ place }: { readonly place: Place }): ReactNode {
  switch (place.room) {
    case "mission":
      return <Mission />;
    case "new":
      return (
        <OnMachine wanted={place.node} onNode={(node) => go({ ...place, node })}>
          <NewSession agent={place.agent} cwd={place.cwd} />
        </OnMachine>
      );
    case "agents":
      return (
        <OnMachine wanted={place.node} onNode={(node) => go({ ...place, node })}>
          <AgentsRoom agent={place.agent} />
        </OnMachine>
      );
    case "files":
      return (
        <OnMachine wanted={place.node} onNode={(node) => go({ room: "files", node })}>
          <FilesRoom path={place.path} />
        </OnMachine>
      );
    case "nodes":
      return <NodesRoom />;
    case "replay":
      return <Replay />;
    case "session":
    case "embed":
      return <SessionRoom id={place.id} tab={place.tab ?? "chat"} at={place.at} embedded={place.room === "embed"} />;
    case "lost":
      return (
        <EmptyState
          first
          icon={<Compass />}
          title="Page not found"
          actions={<Button onClick={() => go({ room: "mission" })}>Mission control</Button>}
        >
          <code>{place.path}</code> leads nowhere.
        </EmptyState>
      );
  }
}

/** What waits for the person stands in the page's title, where a tab in the background shows it. */
function usePageTitle(place: Place): void {
  const { waiting } = useInventory();
  const session = useSessionInfo("id" in place ? place.id : "");
  const name = session ? titleOf(session) : nameOf(place.room);
  useEffect(() => {
    document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${name} · Inspector`;
  }, [waiting, name]);
}

/** A room that breaks leaves the others standing. */
class Fence extends Component<{ readonly children: ReactNode }, { readonly error: unknown }> {
  override state: { readonly error: unknown } = { error: undefined };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === undefined) return this.props.children;
    return (
      <EmptyState
        first
        title="Something went wrong here"
        actions={<Button onClick={() => this.setState({ error: undefined })}>Try again</Button>}
      >
        {error instanceof Error ? error.message : String(error)}
      </EmptyState>
    );
  }
}
