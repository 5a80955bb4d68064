/** Sessions, a line each; only those in view are there, however many there are. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { Brain, MessageSquareText, Wrench } from "lucide-react";
import { type KeyboardEvent, type ReactNode, memo, useRef } from "react";
import type { SessionInfo } from "sandboxagent";

import { Ago, Badge, STATES, StateDot, durationText, useNow } from "../design/index.js";
import { Link } from "../router.js";
import { stateOf, titleOf } from "../server/index.js";
import { SafeText } from "../text/safe-text.js";
import { costText, tokensText } from "./listing.js";
import styles from "./mission.module.css";

const HEIGHT = 48;

export function SessionTable({ sessions }: { readonly sessions: readonly SessionInfo[] }): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const focused = useRef<number>(undefined);
  const now = useNow(1_000);
  const virtualizer = useVirtualizer({
    count: sessions.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => HEIGHT,
    overscan: 8,
    getItemKey: (index) => (sessions[index] as SessionInfo).sessionId,
    useFlushSync: false,
  });
  const key = (event: KeyboardEvent<HTMLDivElement>): void => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (step === undefined) return;
    const to = Math.max(0, Math.min(sessions.length - 1, focused.current === undefined ? 0 : focused.current + step));
    // At once: the next key may come before the line is there to have the focus.
    focused.current = to;
    event.preventDefault();
    virtualizer.scrollToIndex(to, { align: "auto" });
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-line="${to}"]`)?.focus());
  };
  return (
    <div className={styles.table}>
      <div className={styles.columns} aria-hidden>
        <span />
        <span>Session</span>
        <span>Last</span>
        <span>Turn</span>
        <span>Tokens</span>
        <span>Cost</span>
        <span>Active</span>
      </div>
      <div
        ref={scroller}
        className={styles.scroller}
        role="list"
        aria-label="Sessions"
        tabIndex={-1}
        onKeyDown={key}
        onFocus={({ target }) => (focused.current = Number(target.dataset["line"] ?? 0))}
      >
        <div role="presentation" className={styles.lines} style={{ height: virtualizer.getTotalSize() }}>
          {virtualizer.getVirtualItems().map(({ index, start, key: name }) => {
            const session = sessions[index] as SessionInfo;
            const started = session.activity.turnStartedAt;
            return (
              <Line
                key={name}
                session={session}
                line={index}
                start={start}
                elapsed={started === null ? undefined : Math.max(0, Math.floor((now - Date.parse(started)) / 1000))}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

interface LineProps {
  readonly session: SessionInfo;
  readonly line: number;
  readonly start: number;
  /** Seconds since its turn began. */
  readonly elapsed: number | undefined;
}

const KINDS = {
  message: <MessageSquareText aria-hidden />,
  thought: <Brain aria-hidden />,
  tool: <Wrench aria-hidden />,
} as const;

const Line = memo(function Line({ session, line, start, elapsed }: LineProps): ReactNode {
  const { sessionId, agent, cwd, node, activity, pending, updatedAt } = session;
  const state = stateOf(session);
  return (
    <div role="listitem" className={styles.item} style={{ transform: `translateY(${start}px)` }}>
      <Link to={{ room: "session", id: sessionId }} className={styles.line} data-line={line} data-state={state}>
        <StateDot state={state} />
        <span className={styles.name}>
          <span className={styles.called}>
            <SafeText text={titleOf(session)} as="prose" limit={200} />
          </span>
          <span className={styles.where}>
            {agent} · {node !== undefined && `${node} · `}
            <bdi>{cwd}</bdi>
          </span>
        </span>
        <span className={styles.last}>
          {pending > 0 && <Badge tone="waiting">{pending === 1 ? STATES.waiting : `${pending} waiting`}</Badge>}
          {activity.kind !== null && KINDS[activity.kind]}
          <span className={styles.said}>
            <SafeText text={activity.said} as="prose" limit={300} />
          </span>
        </span>
        <span className={styles.number}>{elapsed === undefined ? "" : durationText(elapsed * 1000)}</span>
        <span className={styles.number}>{activity.tokens === null ? "" : tokensText(activity.tokens)}</span>
        <span className={styles.number}>{activity.cost === null ? "" : costText(activity.cost)}</span>
        <span className={styles.number}>
          <Ago at={updatedAt} />
        </span>
      </Link>
    </div>
  );
});
