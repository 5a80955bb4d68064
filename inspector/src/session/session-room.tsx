/** One session: what it is, its rooms, and the line of its time. */

import { Copy, EllipsisVertical, GitFork, MessageSquareOff, PowerOff, Trash2 } from "lucide-react";
import { type ReactNode, Suspense, lazy, useEffect, useState } from "react";
import { type SandboxAgent, ServerProblem, type SessionInfo } from "sandboxagent";

import { Chat } from "../chat/chat.js";
import { Badge, Button, Dialog, EmptyState, ErrorNote, Loading, Menu, MenuItem, STATES, StateDot, Tabs, copy, toast, wordsOf } from "../design/index.js";
import { useLiveState } from "../log/hooks.js";
import { type Tab, TABS, go } from "../router.js";
import { stateOf, titleOf, useInventory, useServer, useSessionInfo } from "../server/index.js";
import { spelledOut } from "../text/visible.js";
import { Timeline } from "../timeline/timeline.js";
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
  if (found === undefined) return <Loading label="Loading the session" />;
  if (found instanceof Error) return <Absent id={id} error={found} />;
  const room = { sessionId: found.sessionId, at };
  return (
    <div className={styles.room}>
      <Head session={found} tab={tab} at={at} embedded={embedded} />
      <div className={styles.content}>
        <Suspense fallback={<Loading />}>
          {tab === "chat" && <Chat {...room} />}
          {tab === "changes" && <Changes {...room} />}
          {tab === "envelopes" && <Envelopes {...room} />}
          {tab === "files" && <SessionFiles session={found} />}
        </Suspense>
      </div>
      <Timeline {...room} />
    </div>
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
  if (!gone) return <ErrorNote title="The session could not be read" error={error} />;
  return (
    <EmptyState
      first
      icon={<MessageSquareOff />}
      title="There is no such session"
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
}

function Head({ session, tab, at, embedded }: HeadProps): ReactNode {
  const state = useLiveState(session.sessionId) ?? stateOf(session);
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
      {!embedded && <Actions session={session} />}
    </header>
  );
}

function Actions({ session }: { readonly session: SessionInfo }): ReactNode {
  const { client } = useServer();
  const [asking, setAsking] = useState<"end" | "delete">();
  const { sessionId } = session;
  const run = async (work: (client: SandboxAgent) => Promise<unknown>): Promise<void> => {
    try {
      await work(client);
    } catch (error) {
      toast(wordsOf(error), "bad");
    }
  };
  return (
    <>
      <Menu label="Actions of the session" icon={<EllipsisVertical aria-hidden />}>
        <MenuItem onSelect={() => void copy(sessionId, "Copied the session's id")}>
          <Copy aria-hidden /> Copy its id
        </MenuItem>
        <MenuItem
          onSelect={() =>
            void run(async ({ sessions }) => go({ room: "session", id: (await sessions.fork(sessionId)).id }))
          }
        >
          <GitFork aria-hidden /> Fork
        </MenuItem>
        <MenuItem disabled={session.ended && !session.resumable} onSelect={() => setAsking("end")}>
          <PowerOff aria-hidden /> End for good…
        </MenuItem>
        <MenuItem danger onSelect={() => setAsking("delete")}>
          <Trash2 aria-hidden /> Delete…
        </MenuItem>
      </Menu>
      {asking && (
        <Dialog
          title={asking === "end" ? "End this session?" : "Delete this session?"}
          onClose={() => setAsking(undefined)}
          actions={
            <>
              <Button onClick={() => setAsking(undefined)}>Keep it</Button>
              <Button
                look="danger"
                onClick={() => {
                  setAsking(undefined);
                  void run(async ({ sessions }) => {
                    await (asking === "end" ? sessions.terminate(sessionId) : sessions.delete(sessionId));
                    if (asking === "delete") go({ room: "mission" });
                  });
                }}
              >
                {asking === "end" ? "End it" : "Delete it"}
              </Button>
            </>
          }
        >
          {asking === "end"
            ? "A turn that runs is cut off, and the session cannot be resumed. Its log stays."
            : "The session and its log are gone then, at the agent as well. This cannot be undone."}
        </Dialog>
      )}
    </>
  );
}
