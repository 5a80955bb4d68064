/** One session: what it is, its rooms, and the line of its time. */

import { Clock, MessageSquareOff, TriangleAlert } from "lucide-react";
import { type ReactNode, Suspense, lazy, useEffect, useState } from "react";
import { ServerProblem, type SessionInfo } from "sandboxagent";

import { Chat } from "../chat/chat.js";
import { PastNote } from "../chat/past-note.js";
import { type Command, useOffer } from "../commands/commands.js";
import { Badge, Button, EmptyState, ErrorNote, IconButton, Loading, STATES, StateDot, Tabs } from "../design/index.js";
import { useKept } from "../design/kept.js";
import { useNarrow } from "../design/narrow.js";
import { useLiveState } from "../log/hooks.js";
import { type Tab, TABS, go, useSpot } from "../router.js";
import { stateOf, titleOf, useInventory, useServer, useSessionInfo } from "../server/index.js";
import { SafeText } from "../text/safe-text.js";
import { spelledOut } from "../text/visible.js";
import { Timeline } from "../timeline/timeline.js";
import { Actions } from "./actions.js";
import styles from "./session-room.module.css";

const Changes = lazy(async () => ({ default: (await import("../changes/changes.js")).Changes }));
const Envelopes = lazy(async () => ({ default: (await import("../envelopes/envelopes.js")).Envelopes }));
const SessionFiles = lazy(async () => ({ default: (await import("../files/session-files.js")).SessionFiles }));

const LABELS: Record<Tab, string> = { chat: "Chat", changes: "Changes", envelopes: "Envelopes", files: "Files" };

interface SessionRoomProps {
  readonly id: string;
  readonly tab: Tab;
  readonly at: number | undefined;
  /** In a frame of another site: there is no way out of the session. */
  readonly embedded?: boolean;
}

export function SessionRoom({ id, tab, at, embedded = false }: SessionRoomProps): ReactNode {
  const found = useFound(id);
  const timeline = useTimeline(at);
  if (found === undefined) return <Loading label="Loading the session" />;
  if (found instanceof Error) return <Absent id={id} error={found} />;
  const room = { sessionId: found.sessionId, at };
  return (
    <div className={styles.room}>
      <Head session={found} tab={tab} at={at} embedded={embedded} timeline={timeline} />
      <LeftOut session={found} />
      <div className={styles.content}>
        <Suspense fallback={<Loading />}>
          {tab === "chat" && <Chat {...room} />}
          {tab === "changes" && <Changes {...room} />}
          {tab === "envelopes" && <Envelopes {...room} />}
          {tab === "files" && <SessionFiles session={found} />}
        </Suspense>
      </div>
      {timeline === undefined && at !== undefined && tab !== "chat" && <PastNote at={at} />}
      {timeline?.isOpen && <Timeline {...room} />}
    </div>
  );
}

interface Switch {
  readonly isOpen: boolean;
  readonly toggle: () => void;
}

/** Whether the line of time is there, and how to change that; a phone has no room for it. */
function useTimeline(at: number | undefined): Switch | undefined {
  const { move } = useSpot();
  const [kept, keep] = useKept<"on" | "off">("timeline", "off");
  const isNarrow = useNarrow();
  // A link to a moment shows where in the session that is.
  const isOpen = kept === "on" || at !== undefined;
  const toggle = (): void => {
    keep(isOpen ? "off" : "on");
    if (at !== undefined) move({ at: undefined });
  };
  const command: Command = { label: isOpen ? "Hide timeline" : "Show timeline", icon: <Clock aria-hidden />, run: toggle };
  useOffer(isNarrow ? NOTHING : [command]);
  return isNarrow ? undefined : { isOpen, toggle };
}

const NOTHING: readonly Command[] = [];

/** Says which facts of a session cannot be shown. */
export function LeftOut({ session: { leftOut = [] } }: { readonly session: Pick<SessionInfo, "leftOut"> }): ReactNode {
  if (leftOut.length === 0) return null;
  return (
    <p className={styles.note}>
      <TriangleAlert aria-hidden />
      <span>
        Not shown: <SafeText text={leftOut.join(", ")} as="prose" limit={300} />. An earlier release stored more levels of
        JSON than the server reads.
      </span>
    </p>
  );
}

/** The session as the inventory has it; until that has come, as the server says. */
function useFound(id: string): SessionInfo | Error | undefined {
  const { client } = useServer();
  const { loaded } = useInventory();
  const listed = useSessionInfo(id);
  const [asked, setAsked] = useState<{ id: string; found: SessionInfo | Error }>();
  const missing = listed === undefined;
  useEffect(() => {
    if (!missing) return undefined;
    let current = true;
    client.sessions.get(id).then(
      (found) => current && setAsked({ id, found }),
      (error: unknown) => current && setAsked({ id, found: error instanceof Error ? error : new Error(String(error)) }),
    );
    return () => {
      current = false;
    };
  }, [client, id, missing, loaded]);
  return listed ?? (asked?.id === id ? asked.found : undefined);
}

function Absent({ id, error }: { readonly id: string; readonly error: Error }): ReactNode {
  const gone = error instanceof ServerProblem && error.status === 404;
  if (!gone) return <ErrorNote title="Could not load the session" error={error} />;
  return (
    <EmptyState
      first
      icon={<MessageSquareOff />}
      title="Session not found"
      actions={<Button onClick={() => go({ room: "mission" })}>All sessions</Button>}
    >
      The server has no session <code>{id}</code>. It may have been deleted.
    </EmptyState>
  );
}

interface HeadProps {
  readonly session: SessionInfo;
  readonly tab: Tab;
  readonly at: number | undefined;
  readonly embedded: boolean;
  readonly timeline: Switch | undefined;
}

function Head({ session, tab, at, embedded, timeline }: HeadProps): ReactNode {
  const live = useLiveState(session.sessionId);
  // The log does not say whether a prompt resumes it.
  const state = live === undefined || live === "ended" ? stateOf(session) : live;
  const room = embedded ? "embed" : "session";
  const moment = at === undefined ? {} : { at };
  const title = spelledOut(titleOf(session), "prose");
  return (
    <header className={styles.head}>
      <div className={styles.name}>
        <StateDot state={state} />
        <h1 title={title} dir="auto">
          {title}
        </h1>
        <span className={styles.facts}>
          <Badge tone={state === "waiting" ? "waiting" : state === "running" ? "accent" : "neutral"}>{STATES[state]}</Badge>
          <span className={styles.agent}>
            {session.agent}
            {session.node !== undefined && ` on ${spelledOut(session.node, "prose").slice(0, 40)}`}
          </span>
          <span className={styles.id} title={`Session id ${session.sessionId}`}>
            {session.sessionId}
          </span>
          <bdi className={styles.cwd} title={session.cwd}>
            {session.cwd}
          </bdi>
        </span>
      </div>
      <Tabs
        label="Views of the session"
        tabs={TABS.map((each) => ({
          to: { room, id: session.sessionId, tab: each, ...moment },
          label: LABELS[each],
          current: each === tab,
        }))}
      />
      {timeline && (
        <IconButton label="Timeline" aria-pressed={timeline.isOpen} onClick={timeline.toggle}>
          <Clock aria-hidden />
        </IconButton>
      )}
      {!embedded && <Actions session={session} />}
    </header>
  );
}
