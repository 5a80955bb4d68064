/** The conversation: what was said and done, what waits for the person, and where the person writes. */

import { MessageSquareText } from "lucide-react";
import { useEffect, useMemo, useRef, useState, type DragEvent, type ReactNode } from "react";
import type { Session, SessionView } from "sandboxagent";

import { Composer, type Dropped } from "../composer/composer.js";
import { EmptyState, ErrorNote, Loading } from "../design/index.js";
import { useSessionLog, useSessionView, useShown } from "../log/hooks.js";
import { useSpot } from "../router.js";
import { useServer, useSessionInfo } from "../server/index.js";
import { AnsweredHere, answersFromHere } from "../waiting/answered-here.js";
import { Waiting } from "../waiting/waiting.js";
import { Folds } from "./folds.js";
import { PastNote } from "./past-note.js";
import { PlanBar } from "./plan-bar.js";
import { type Row, rowsOf } from "./rows.js";
import { SessionFiles } from "./session-files.js";
import { Transcript } from "./transcript.js";

import "./chat.css";

export interface ChatProps {
  readonly sessionId: string;
  /** The event whose moment is shown; undefined for now. */
  readonly at: number | undefined;
}

export function Chat({ sessionId, at }: ChatProps): ReactNode {
  return <ChatOf key={sessionId} sessionId={sessionId} at={at} />;
}

function ChatOf({ sessionId, at }: ChatProps): ReactNode {
  const { client } = useServer();
  const view = useSessionView(sessionId, at);
  const { session, failure } = useSession(sessionId);
  const [answered, setAnswered] = useState(() => answersFromHere(sessionId));
  const dropped = useRef<Dropped>({ take: undefined });
  const isLive = at === undefined;
  const info = useSessionInfo(sessionId);
  const isOver = info !== undefined && info.ended && !info.resumable;
  return (
    <SessionFiles value={session?.files}>
      <AnsweredHere value={answered}>
        <DropZone take={isLive && !isOver ? (files) => dropped.current.take?.(files) : undefined}>
          <Conversation sessionId={sessionId} view={view} isLive={isLive} />
          <div className="chat-foot">
            {isLive ? (
              <>
                <Waiting
                  client={client}
                  sessionId={sessionId}
                  view={view}
                  agent={info?.agent ?? view.agent}
                  onAnswered={(key) => setAnswered((now) => new Set([...now, key]))}
                />
                {failure !== undefined && (
                  <ErrorNote title="Could not connect to the session" error={failure} />
                )}
                <PlanBar view={view} />
                <Composer
                  sessionId={sessionId}
                  session={session}
                  view={view}
                  dropped={dropped.current}
                  closed={isOver ? "This session has ended. You can still read it." : undefined}
                />
              </>
            ) : (
              <>
                <PlanBar view={view} />
                <PastNote at={at} />
              </>
            )}
          </div>
        </DropZone>
      </AnsweredHere>
    </SessionFiles>
  );
}

interface ConversationProps {
  readonly sessionId: string;
  readonly view: SessionView;
  readonly isLive: boolean;
}

/** The transcript, or what stands in its place while there is none. */
function Conversation({ sessionId, view, isLive }: ConversationProps): ReactNode {
  const { reading } = useShown(useSessionLog(sessionId));
  const focus = useSpot().spot.event;
  if (reading.state === "failed")
    return <ErrorNote title="Could not load the session's log" error={reading.error} />;
  if (view.turns.length === 0) {
    if (reading.state === "loading") return <Loading label="Reading the log" />;
    return (
      <EmptyState icon={<MessageSquareText />} title={isLive ? "No messages yet" : "No messages at this moment"}>
        {isLive && "Write the first prompt below."}
      </EmptyState>
    );
  }
  return <TranscriptRoom view={view} focus={focus} isLive={isLive} />;
}

/** The transcript of a view, with what the reader has opened; for rooms without a server, too. */
export function TranscriptRoom({
  view,
  focus,
  isLive,
}: {
  readonly view: SessionView;
  readonly focus?: number | undefined;
  readonly isLive: boolean;
}): ReactNode {
  const folds = useRef(new Map<string, boolean>());
  const rows: readonly Row[] = useMemo(() => rowsOf(view), [view]);
  return (
    <Folds value={folds.current}>
      <Transcript view={view} rows={rows} focus={focus} isLive={isLive} />
    </Folds>
  );
}

/** This client's session: attached, so that prompts can be sent and questions answered. */
function useSession(sessionId: string): { session: Session | undefined; failure: unknown } {
  const { client } = useServer();
  const [found, setFound] = useState<{ session: Session | undefined; failure: unknown }>({
    session: undefined,
    failure: undefined,
  });
  useEffect(() => {
    let current = true;
    client.sessions.attach(sessionId).then(
      (session) => current && setFound({ session, failure: undefined }),
      (failure: unknown) => current && setFound({ session: undefined, failure }),
    );
    return () => {
      current = false;
    };
  }, [client, sessionId]);
  return found;
}

/** Files dropped anywhere on the conversation are attached. */
function DropZone({
  take,
  children,
}: {
  readonly take: ((files: readonly File[]) => void) | undefined;
  readonly children: ReactNode;
}): ReactNode {
  const [over, setOver] = useState(false);
  const hasFiles = (event: DragEvent): boolean => take !== undefined && event.dataTransfer.types.includes("Files");
  return (
    <div
      className="chat"
      onDragOver={(event) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget as Node | null)) setOver(false);
      }}
      onDrop={(event) => {
        setOver(false);
        if (!hasFiles(event)) return;
        event.preventDefault();
        take?.([...event.dataTransfer.files]);
      }}
    >
      {children}
      {over && <div className="drop-note">Drop to attach</div>}
    </div>
  );
}
