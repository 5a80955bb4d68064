/** One row of a transcript. */

import { Braces, ChevronRight, CircleStop, Info, TriangleAlert } from "lucide-react";
import { memo, useMemo, type ReactNode } from "react";

import type {
  FailureItem,
  GapItem,
  NoticeItem,
  SessionView,
  ThoughtItem,
  ToolCallItem,
  TurnView,
  UserItem,
  ViewItem,
} from "sandboxagent";

import { IconButton, Spinner, durationText, useNow } from "../design/index.js";
import { useSpot } from "../router.js";
import { Ansi } from "../text/ansi.js";
import { Markdown } from "../text/markdown.js";
import { SafeText } from "../text/safe-text.js";
import { AttachmentChip } from "./attachment.js";
import { BlockView } from "./block-view.js";
import { useFold } from "./folds.js";
import { PlanView } from "./plan-view.js";
import type { Row } from "./rows.js";
import { SettledView } from "./settled-view.js";
import { ToolCard } from "./tool-card.js";
import { writtenIn } from "./written.js";

export interface RowViewProps {
  readonly row: Row;
  readonly view: SessionView;
  readonly isLive: boolean;
  readonly isFocused: boolean;
}

export const RowView = memo(
  function RowView({ row, view, isLive, isFocused }: RowViewProps): ReactNode {
    if (row.kind === "working") return <Working turn={row.turn} view={view} isLive={isLive} />;
    if (row.kind === "end") return <TurnEnd turn={row.turn} />;
    // What waits is below, where it can be answered.
    if (isLive && row.item.type === "request" && row.item.decision === undefined) return null;
    return (
      <div
        className={`item item-${row.item.type}`}
        data-item={row.item.key}
        data-event={row.item.events.first}
        data-focused={isFocused || undefined}
      >
        <ItemView item={row.item} streaming={row.streaming} view={view} isLive={isLive} />
        {row.item.events.count > 0 && <SourceLink event={row.item.events.first} />}
      </div>
    );
  },
  // A view changes with every event, an item only with its own. Cards look up terminals, waiting rows the state.
  (before, after) =>
    before.row === after.row &&
    before.isLive === after.isLive &&
    before.isFocused === after.isFocused &&
    (!looksAround(after.row) || isSameAround(before.view, after.view)),
);

/** The way from what is shown to the envelopes that it came from. */
function SourceLink({ event }: { readonly event: number }): ReactNode {
  const { move } = useSpot();
  return (
    <IconButton
      size="small"
      className="item-source"
      label={`Show envelope ${event}`}
      onClick={() => move({ tab: "envelopes", event })}
    >
      <Braces aria-hidden />
    </IconButton>
  );
}

function looksAround(row: Row): boolean {
  return row.kind === "working" || (row.kind === "item" && (row.item.type === "tool" || row.item.type === "plan"));
}

/** Whether the person is being asked about a tool call: then what it does is shown there. */
function isAsked(tool: ToolCallItem, view: SessionView): boolean {
  return tool.requestKey !== undefined && view.pending.some(({ key }) => key === tool.requestKey);
}

function isSameAround(before: SessionView, after: SessionView): boolean {
  return (
    before === after ||
    (before.terminals === after.terminals &&
      before.pending === after.pending &&
      before.plan === after.plan &&
      before.status === after.status)
  );
}

interface ItemViewProps {
  readonly item: ViewItem;
  readonly streaming: boolean;
  readonly view: SessionView;
  readonly isLive: boolean;
}

function ItemView({ item, streaming, view, isLive }: ItemViewProps): ReactNode {
  switch (item.type) {
    case "user":
      return <UserMessageView message={item} />;
    case "text":
      return <Markdown text={item.text} streaming={streaming} />;
    case "thought":
      return <ThoughtView thought={item} streaming={streaming} />;
    case "content":
      return <BlockView block={item.block} />;
    case "tool":
      return <ToolCard tool={item} terminals={view.terminals} isLive={isLive} isAsked={isAsked(item, view)} />;
    case "plan":
      return <PlanView snapshot={item} isCurrent={item.entries === view.plan} />;
    case "request":
      return <SettledView asked={item} isLive={isLive} />;
    case "failure":
      return <FailureView failure={item} />;
    case "notice":
      return <NoticeView notice={item} />;
    case "gap":
      return <MissingView missing={item} />;
  }
}

function UserMessageView({ message }: { readonly message: UserItem }): ReactNode {
  const { blocks, files } = useMemo(() => writtenIn(message), [message]);
  return (
    <div className="user-message">
      {blocks.map((block, index) =>
        block.type === "text" ? (
          <p key={index} className="user-text" dir="auto">
            <SafeText text={block.text} as="prose" />
          </p>
        ) : (
          <BlockView key={index} block={block} />
        ),
      )}
      {files.length > 0 && (
        <ul className="attachments" aria-label="Attachments">
          {files.map((file, index) => (
            <li key={index}>
              <AttachmentChip {...file} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function ThoughtView({ thought, streaming }: { readonly thought: ThoughtItem; readonly streaming: boolean }): ReactNode {
  const [open, toggle] = useFold(thought.key, false);
  const took = Date.parse(thought.until) - Date.parse(thought.at);
  return (
    <div className="thought">
      <button type="button" className="thought-head" aria-expanded={open} onClick={toggle}>
        <ChevronRight aria-hidden size={14} className="chevron" />
        {streaming ? "Thinking" : took >= 1_000 ? `Thought for ${durationText(took)}` : "Thought"}
        {!open && <span className="thought-glimpse">{glimpse(thought.text)}</span>}
      </button>
      {open && <Markdown text={thought.text} streaming={streaming} />}
    </div>
  );
}

function glimpse(text: string): string {
  return text
    .slice(-400)
    .replace(/[\s*_#`]+/g, " ")
    .trim()
    .slice(-140);
}

function FailureView({ failure }: { readonly failure: FailureItem }): ReactNode {
  const lines = failure.stderr;
  const output = lines
    ? [...lines.head, ...(lines.truncated ? ["…"] : []), ...lines.tail.slice(lines.truncated ? 0 : lines.tail.length)]
    : [];
  // Most messages have them already.
  const facts = [
    failure.exitCode !== undefined &&
      !failure.message.includes(`code ${failure.exitCode}`) &&
      `exit code ${failure.exitCode}`,
    failure.signal !== undefined && !failure.message.includes(failure.signal) && `signal ${failure.signal}`,
    failure.code !== undefined &&
      failure.exitCode === undefined &&
      failure.signal === undefined &&
      `error ${failure.code}`,
  ].filter((each) => each !== false);
  return (
    <div className="failure" role="alert">
      <TriangleAlert aria-hidden size={16} />
      <div className="failure-words">
        <p>
          <SafeText text={failure.message} as="prose" limit={4_000} />
          {facts.length > 0 && <span className="failure-facts"> {facts.join(", ")}</span>}
        </p>
        {output.length > 0 && (
          <>
            <span className="label">stderr</span>
            <Ansi output={output.join("\n")} label="stderr" rows={14} />
          </>
        )}
      </div>
    </div>
  );
}

function NoticeView({ notice }: { readonly notice: NoticeItem }): ReactNode {
  return (
    <p className="notice">
      <Info aria-hidden size={14} />
      <SafeText text={notice.text} as="prose" limit={500} />
    </p>
  );
}

function MissingView({ missing }: { readonly missing: GapItem }): ReactNode {
  const { after, resumesAt } = missing;
  return (
    <p className="missing">
      The events after {after} and before {resumesAt} are no longer kept.
    </p>
  );
}

function Working({
  turn,
  view,
  isLive,
}: {
  readonly turn: TurnView;
  readonly view: SessionView;
  readonly isLive: boolean;
}): ReactNode {
  const now = useNow(isLive ? 1_000 : 3_600_000);
  const until = isLive ? now : Date.parse(view.time);
  const waits = view.status === "waiting";
  return (
    <p className={`turn-end ${waits ? "turn-waits" : ""}`}>
      {isLive && !waits && <Spinner label="Working" />}
      {waits ? "Waiting for you" : "Working"}
      <span className="turn-fact">{durationText(Math.max(0, until - Date.parse(turn.startedAt)))}</span>
    </p>
  );
}

const STOPS: Readonly<Record<string, string>> = {
  max_tokens: "Stopped at the token limit",
  max_turn_requests: "Stopped after too many requests",
  refusal: "The agent refused",
};

function TurnEnd({ turn }: { readonly turn: TurnView }): ReactNode {
  const took = turn.endedAt === undefined ? undefined : Date.parse(turn.endedAt) - Date.parse(turn.startedAt);
  const word = turn.state === "failed" ? "Failed" : (STOPS[turn.stopReason ?? ""] ?? "");
  const stopped = turn.neverBegan ? "Stopped before it began" : "Stopped";
  return (
    <p className={`turn-end turn-${turn.state}`}>
      {turn.state === "cancelled" && <CircleStop aria-hidden size={14} />}
      {turn.state === "cancelled" ? stopped : word}
      {!turn.neverBegan && took !== undefined && <span className="turn-fact">{durationText(took)}</span>}
      {turn.tokens && <span className="turn-fact">{countText(turn.tokens.total)} tokens</span>}
    </p>
  );
}

/** A number of tokens: `812`, `12.3k`, `1.2M`. */
export function countText(count: number): string {
  if (count < 1_000) return String(count);
  if (count < 999_500) return `${(count / 1_000).toFixed(count < 10_000 ? 1 : 0)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}
