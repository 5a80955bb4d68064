/** The list of envelopes: only the lines in view are there, however long the log. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDownLeft, ArrowRight, ArrowUpRight } from "lucide-react";
import { type KeyboardEvent, type ReactNode, memo, useEffect, useLayoutEffect, useRef } from "react";

import type { Entry } from "../log/event.js";
import { durationText, sizeText } from "../design/index.js";
import type { Row, Rows } from "../log/rows.js";
import type { SessionLog } from "../log/session-log.js";
import { SafeText } from "../text/safe-text.js";
import styles from "./envelopes.module.css";
import { previewOf, sizeOf } from "./preview.js";
import type { Listed } from "./use-rows.js";

const HEIGHT = 28;
/** Pixels from the end within which the list stays at its end. */
const NEAR = 40;

interface EnvelopeListProps {
  readonly log: SessionLog;
  readonly rows: Rows;
  readonly listed: Listed;
  readonly chosen: number | undefined;
  readonly choose: (place: number | undefined) => void;
  /** Whether the list goes along with what is added. */
  readonly follow: boolean;
}

export function EnvelopeList({ log, rows, listed, chosen, choose, follow }: EnvelopeListProps): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const atEnd = useRef(chosen === undefined);
  const { count, place, lineOf } = listed;
  const virtualizer = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => HEIGHT,
    overscan: 6,
    getItemKey: place,
    useFlushSync: false,
  });
  useLayoutEffect(() => {
    if (follow && atEnd.current && count > 0) virtualizer.scrollToIndex(count - 1, { align: "end" });
  }, [count, follow, virtualizer]);
  const lines = virtualizer.getVirtualItems();
  const pair = chosen === undefined ? undefined : rows.at(chosen)?.pair;
  const line = chosen === undefined ? -1 : lineOf(chosen);
  useEffect(() => {
    if (line < 0) return;
    atEnd.current = false;
    virtualizer.scrollToIndex(line, { align: "auto" });
    // Only when another one is chosen: lines that are added before it must not move the list.
  }, [chosen, virtualizer]);
  const scrolled = (): void => {
    const element = scroller.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR;
  };
  const key = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 0) / HEIGHT) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page };
    const step = steps[event.key];
    const ends: Record<string, number> = { Home: 0, End: count - 1 };
    const to = step === undefined ? ends[event.key] : line < 0 ? count - 1 : line + step;
    if (event.key === "p" && pair !== undefined) choose(pair);
    else if (event.key === "Escape") choose(undefined);
    else if (to !== undefined) choose(place(Math.max(0, Math.min(count - 1, to))));
    else return;
    event.preventDefault();
  };
  return (
    <div
      ref={scroller}
      className={styles.list}
      role="listbox"
      tabIndex={0}
      aria-label="Envelopes"
      aria-activedescendant={chosen === undefined ? undefined : `envelope-${chosen}`}
      onScroll={scrolled}
      onKeyDown={key}
    >
      <div role="presentation" className={styles.lines} style={{ height: virtualizer.getTotalSize() }}>
        {lines.map(({ index, start }) => {
          const at = place(index);
          const row = rows.at(at) as Row;
          return (
            <Line
              // The elements of a line that has gone are those of one that comes: a scroll makes none anew.
              key={index % lines.length}
              row={row}
              entry={log.entry(at)}
              latency={row.latency}
              start={start}
              total={count}
              line={index}
              mark={at === chosen ? "chosen" : at === pair ? "pair" : ""}
              choose={choose}
            />
          );
        })}
      </div>
    </div>
  );
}

interface LineProps {
  readonly row: Row;
  /** Absent until it has been read. */
  readonly entry: Entry | undefined;
  /** Beside its row, because that changes when the answer comes. */
  readonly latency: number | undefined;
  readonly start: number;
  readonly line: number;
  readonly total: number;
  readonly mark: "" | "chosen" | "pair";
  readonly choose: (place: number) => void;
}

const ARROWS = {
  toAgent: [<ArrowUpRight key="" aria-hidden />, "to agent"],
  fromAgent: [<ArrowDownLeft key="" aria-hidden />, "from agent"],
  fromServer: [<ArrowRight key="" aria-hidden />, "from server"],
} as const;

/** Most of it is plain, and needs no marks. */
function Preview({ text }: { readonly text: string }): ReactNode {
  return PLAIN.test(text) ? text : <SafeText text={text} limit={300} />;
}

const PLAIN = /^[ -~…]*$/;

const Line = memo(
  function Line({ row, entry, latency, start, line, total, mark, choose }: LineProps): ReactNode {
    const [arrow, way] = ARROWS[row.way];
    return (
      <div
        id={`envelope-${row.index}`}
        role="option"
        aria-selected={mark === "chosen"}
        aria-posinset={line + 1}
        aria-setsize={total}
        className={styles.line}
        data-way={row.way}
        data-kind={row.kind}
        data-mark={mark}
        data-error={row.isError || undefined}
        data-event={row.id}
        style={{ transform: `translateY(${start}px)` }}
        onClick={() => choose(row.index)}
      >
        <span className={styles.id}>{row.kind === "gap" ? "" : row.id}</span>
        <span className={styles.time}>{row.at.slice(11, 23)}</span>
        <span className={styles.way} title={way}>
          {arrow}
          <span className="unseen">{way}</span>
        </span>
        <span className={styles.method}>
          {row.kind === "response" && <span className={styles.answer}>{row.isError ? "error" : "result"}</span>}
          {row.method || "response"}
          {row.subtype !== "" && row.subtype !== "error" && row.subtype !== "result" && (
            <span className={styles.subtype}> · {row.subtype}</span>
          )}
        </span>
        <span className={styles.preview}>
          {entry && <Preview text={previewOf(entry)} />}
        </span>
        <span className={styles.latency}>{latency === undefined ? "" : durationText(latency)}</span>
        <span className={styles.size}>{entry === undefined || row.kind === "gap" ? "" : sizeText(sizeOf(entry))}</span>
      </div>
    );
  },
  (before, after) =>
    before.row.index === after.row.index &&
    before.entry === after.entry &&
    before.latency === after.latency &&
    before.mark === after.mark &&
    before.start === after.start &&
    before.total === after.total &&
    before.choose === after.choose,
);
