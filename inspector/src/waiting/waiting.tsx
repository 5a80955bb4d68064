/** What waits for the person in a session, above the composer; and for a moment, what others have answered. */

import { useEffect, useMemo, useRef, useState, useSyncExternalStore, type ReactNode } from "react";
import type { RequestItem, SandboxAgent, SessionView, ToolCallItem } from "sandboxagent";

import { SafeText } from "../text/safe-text.js";
import { actionOf, summaryOf } from "./action.js";
import { rememberAnswer } from "./answered-here.js";
import { give, requestFor, requestOf, type Answer } from "./answering.js";
import { type OpenRequest, openRequestsOf } from "./open-requests.js";
import { choiceOf, whoOf } from "./outcome.js";
import { cardsOf, isAhead, pendingOf, type Pending } from "./pending.js";
import { RequestCard } from "./request-card.js";

/** Milliseconds that the news of another's answer stays. */
const NEWS = 8_000;
/** More at once do not help you decide. */
const SHOWN = 3;

export interface WaitingProps {
  readonly client: SandboxAgent;
  readonly sessionId: string;
  readonly view: SessionView;
  readonly agent: string | undefined;
  /** Called when this page has answered a request. */
  readonly onAnswered: (key: string) => void;
}

export function Waiting({ client, sessionId, view, agent, onAnswered }: WaitingProps): ReactNode {
  const open = openRequestsOf(client);
  const requests = useSyncExternalStore(open.subscribe, open.list);
  const pending = useMemo(() => pendingOf(view, sessionId, requests), [view, sessionId, requests]);
  const named = useRef<ReadonlyMap<string, string>>(new Map());
  const cards = useMemo(() => (named.current = cardsOf(pending, named.current)), [pending]);
  const mine = useRef(new Set<string>());
  const remember = (key: string): void => {
    mine.current.add(key);
    rememberAnswer(sessionId, key);
    onAnswered(key);
  };
  /** Answered before the log had them; with what it had by then. */
  const ahead = useRef<readonly { request: OpenRequest; logged: readonly RequestItem[] }[]>([]);
  useEffect(() => {
    ahead.current = ahead.current.filter(({ request, logged }) => {
      const found = askedIn(view).find(
        (item) => requestOf(item, sessionId, [request]) && !logged.some(({ key }) => key === item.key),
      );
      if (found) remember(found.key);
      return found === undefined;
    });
  }, [view]);
  const news = useNews(view, mine.current);
  const answer = async (to: Pending, given: Answer): Promise<void> => {
    const found = to.request ?? (await requestFor(open, sessionId, to.asked));
    if (isAhead(to)) ahead.current = [...ahead.current, { request: found, logged: askedIn(view) }];
    mine.current.add(to.asked.key);
    try {
      await give(client, found, given);
    } catch (error) {
      mine.current.delete(to.asked.key);
      ahead.current = ahead.current.filter(({ request }) => request !== found);
      throw error;
    }
    if (!isAhead(to)) remember(to.asked.key);
  };
  return (
    <div className="waiting">
      <div role="status" className="waiting-news">
        {news.map(({ key, words }) => (
          <p key={key} className="news">
            {words}
          </p>
        ))}
      </div>
      {pending.length > SHOWN && (
        <p className="waiting-more">{pending.length - SHOWN} more requests wait after these</p>
      )}
      {pending.slice(0, SHOWN).map((each, index) => (
        <RequestCard
          key={cards.get(each.asked.key)}
          asked={each.asked}
          agent={agent}
          tool={toolOf(view, each.asked)}
          keys={index === 0}
          onAnswer={(given) => answer(each, given)}
          aside={pending.length > 1 && `${index + 1} of ${pending.length}`}
        />
      ))}
    </div>
  );
}

/** What is known of the tool call that a permission is for. */
export function toolOf(view: SessionView, asked: RequestItem): ToolCallItem | undefined {
  if (asked.kind !== "permission") return undefined;
  const { toolCallId } = asked.toolCall;
  for (const turn of [...view.turns].reverse()) {
    const found = turn.items.findLast((item) => item.type === "tool" && item.toolCallId === toolCallId);
    if (found) return found as ToolCallItem;
    if (turn.key === asked.turnKey) return undefined;
  }
  return undefined;
}

/** What others have answered just now. */
function useNews(view: SessionView, mine: ReadonlySet<string>): readonly { key: string; words: ReactNode }[] {
  const before = useRef<readonly RequestItem[]>([]);
  const [news, setNews] = useState<readonly { key: string; words: ReactNode }[]>([]);
  useEffect(() => {
    const gone = before.current.filter(({ key }) => !view.pending.some((each) => each.key === key));
    // An answer comes a moment before the decision that says whose it is.
    const isUnsaid = (asked: RequestItem): boolean => {
      const decision = settledIn(view, asked)?.decision;
      return decision?.outcome === "answered" && decision.by === undefined;
    };
    before.current = [...view.pending, ...gone.filter(isUnsaid)];
    const settled = gone.flatMap((asked) => {
      const found = isUnsaid(asked) ? undefined : settledIn(view, asked);
      return found?.decision && !mine.has(asked.key) ? [{ key: asked.key, words: wordsOf(found) }] : [];
    });
    if (settled.length === 0) return;
    setNews((shown) => [...shown, ...settled]);
    setTimeout(() => setNews((shown) => shown.filter((each) => !settled.includes(each))), NEWS);
  }, [view, mine]);
  return news;
}

/** What was asked in the last turn. */
function askedIn(view: SessionView): readonly RequestItem[] {
  return view.turns.at(-1)?.items.filter((item): item is RequestItem => item.type === "request") ?? [];
}

function settledIn(view: SessionView, asked: RequestItem): RequestItem | undefined {
  const turn = view.turns.findLast(({ key }) => key === asked.turnKey);
  return turn?.items.findLast((item): item is RequestItem => item.type === "request" && item.key === asked.key);
}

function wordsOf(asked: RequestItem): ReactNode {
  const { decision } = asked;
  if (decision === undefined) return null;
  const about =
    asked.kind === "permission"
      ? summaryOf(actionOf(asked.toolCall))
      : asked.kind === "question"
        ? asked.prompt
        : asked.message;
  return (
    <>
      <strong>{choiceOf(asked, decision)}</strong>, answered by {whoOf(decision.by, false)}:{" "}
      <SafeText text={about} limit={120} />
    </>
  );
}
