/** A log from a file, or a past session, to be stepped through. Nothing is sent and nothing is changed. */

import { FileUp, History, X } from "lucide-react";
import { type DragEvent, type ReactNode, Suspense, lazy, useRef, useState } from "react";

import { TranscriptRoom } from "../chat/chat.js";
import { PlanBar } from "../chat/plan-bar.js";
import { Ago, Badge, Button, EmptyState, ErrorNote, IconButton, Loading, StateDot, Tabs, toast } from "../design/index.js";
import { readLines } from "../envelopes/exporting.js";
import { useLogBook, useSessionView } from "../log/hooks.js";
import { SessionLog } from "../log/session-log.js";
import { Link, go, useSpot } from "../router.js";
import { stateOf, titleOf, useInventory } from "../server/index.js";
import { SafeText } from "../text/safe-text.js";
import { Timeline } from "../timeline/timeline.js";
import styles from "./replay.module.css";

const Changes = lazy(async () => ({ default: (await import("../changes/changes.js")).Changes }));
const Envelopes = lazy(async () => ({ default: (await import("../envelopes/envelopes.js")).Envelopes }));

/** Bytes of a file that is opened at most: all of it is in memory then. */
const LARGEST = 512 * 1024 * 1024;

export function Replay(): ReactNode {
  const [opened, setOpened] = useState<{ id: string; name: string }>();
  return opened ? (
    <Replayed key={opened.id} {...opened} close={() => setOpened(undefined)} />
  ) : (
    <Choosing open={(id, name) => setOpened({ id, name })} />
  );
}

function Choosing({ open }: { readonly open: (id: string, name: string) => void }): ReactNode {
  const book = useLogBook();
  const input = useRef<HTMLInputElement>(null);
  const [error, setError] = useState<string>();
  const [isOver, setOver] = useState(false);
  const read = async (file: File | undefined): Promise<void> => {
    if (file === undefined) return;
    setError(undefined);
    if (file.size > LARGEST) {
      setError(`${file.name} is larger than this page opens`);
      return;
    }
    const { entries, bad } = readLines(await file.text());
    if (entries.length === 0) {
      setError(`${file.name} has no events in it. Export a session from its envelopes, or use sandbox-agent sessions events --json.`);
      return;
    }
    if (bad.length > 0) toast(`${bad.length} lines are no events and were left out; the first is line ${bad[0]}`, "bad");
    const id = `file:${crypto.randomUUID()}`;
    book.keep(SessionLog.of(id, entries));
    go({ room: "replay", at: 0 }, { replace: true });
    open(id, file.name);
  };
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    void read(event.dataTransfer.files[0]);
  };
  return (
    <div
      className={styles.choosing}
      data-over={isOver || undefined}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      <h1 className="unseen">Replay</h1>
      <EmptyState
        first
        icon={<History />}
        title="Replay a session"
        actions={
          <>
            <Button look="primary" onClick={() => input.current?.click()}>
              <FileUp aria-hidden />
              Open a file
            </Button>
            <input
              ref={input}
              type="file"
              hidden
              aria-label="Exported session"
              accept=".jsonl,.ndjson,.json,application/x-ndjson"
              onChange={(event) => void read(event.target.files?.[0])}
            />
          </>
        }
      >
        Open or drop an exported log (JSON lines), and step through it. Nothing is sent to any agent.
      </EmptyState>
      {error !== undefined && <ErrorNote title="This file is not an exported session" error={error} />}
      <PastSessions />
    </div>
  );
}

function PastSessions(): ReactNode {
  const { sessions } = useInventory();
  const past = sessions.filter(({ eventCount }) => eventCount > 0).slice(0, 50);
  if (past.length === 0) return null;
  return (
    <section className={styles.past} aria-label="Sessions of this server">
      <h2>Or a session of this server</h2>
      <ul>
        {past.map((session) => (
          <li key={session.sessionId}>
            <Link to={{ room: "session", id: session.sessionId, at: 0 }}>
              <StateDot state={stateOf(session)} />
              <span className={styles.name}>
                <SafeText text={titleOf(session)} as="prose" limit={200} />
              </span>
              <span className={styles.fact}>{session.agent}</span>
              <span className={styles.fact}>{session.eventCount.toLocaleString("en")} events</span>
              <span className={styles.fact}>
                <Ago at={session.updatedAt} />
              </span>
            </Link>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface ReplayedProps {
  readonly id: string;
  readonly name: string;
  readonly close: () => void;
}

const TABS = { chat: "Chat", changes: "Changes", envelopes: "Envelopes" } as const;

function Replayed({ id, name, close }: ReplayedProps): ReactNode {
  const { spot } = useSpot();
  const tab = spot.tab === "changes" || spot.tab === "envelopes" ? spot.tab : "chat";
  // Always at a moment, also at the last one: there is no now to talk to.
  const at = spot.at ?? Number.MAX_SAFE_INTEGER;
  const view = useSessionView(id, at);
  const room = { sessionId: id, at };
  return (
    <div className={styles.replayed}>
      <header className={styles.head}>
        <h1>
          <SafeText text={view.title ?? name} as="prose" limit={200} />
        </h1>
        <Badge tone="waiting">Replay</Badge>
        <span className={styles.fact}>
          <SafeText text={name} limit={200} />
        </span>
        <Tabs
          label="Views of the session"
          tabs={Object.entries(TABS).map(([each, label]) => ({
            to: { room: "replay", ...spot, tab: each as keyof typeof TABS },
            label,
            current: each === tab,
          }))}
        />
        <IconButton label="Close the file" onClick={close}>
          <X />
        </IconButton>
      </header>
      <div className={styles.content}>
        <Suspense fallback={<Loading />}>
          {tab === "chat" && (
            <div className="chat">
              <TranscriptRoom view={view} focus={spot.event} isLive={false} />
              <div className="chat-foot">
                <PlanBar view={view} />
              </div>
            </div>
          )}
          {tab === "changes" && <Changes {...room} />}
          {tab === "envelopes" && <Envelopes {...room} />}
        </Suspense>
      </div>
      <Timeline {...room} />
    </div>
  );
}
