/**
 * Everything that was said and done. Only what is in view is drawn. It stays at its end while it grows, unless the
 * reader has scrolled up; then nothing moves.
 */

import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown } from "lucide-react";
import { useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";

import type { SessionView } from "sandboxagent";
import { Button } from "../design/index.js";
import { type Row, rowOfEvent } from "./rows.js";
import { RowView } from "./row-view.js";

/** Pixels from the end that still count as the end. */
const NEAR = 48;

export interface TranscriptProps {
  readonly view: SessionView;
  readonly rows: readonly Row[];
  /** An event whose item is to be brought into view. */
  readonly focus?: number | undefined;
  readonly isLive: boolean;
}

export function Transcript({ view, rows, focus, isLive }: TranscriptProps): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const stuck = useRef(true);
  const last = useRef({ top: 0, height: 0 });
  const virtualizer = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => estimate(rows[index] as Row),
    getItemKey: (index) => (rows[index] as Row).key,
    overscan: 6,
  });
  const total = virtualizer.getTotalSize();
  const toEnd = (): void => {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  };

  useLayoutEffect(() => {
    if (stuck.current) toEnd();
  }, [rows, total]);
  // The room below may grow and shrink with what waits there.
  useEffect(() => {
    const element = scroller.current;
    if (!element || typeof ResizeObserver === "undefined") return undefined;
    const observer = new ResizeObserver(() => {
      if (stuck.current) toEnd();
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const focused = focus === undefined ? -1 : rowOfEvent(rows, focus);
  useEffect(() => {
    if (focused < 0) return;
    stuck.current = false;
    setAtEnd(false);
    virtualizer.scrollToIndex(focused, { align: "center" });
    // Again only for another event, or once the log has come so far; not whenever something is added.
  }, [focus, focused]);

  const onScroll = (): void => {
    const element = scroller.current;
    if (!element) return;
    const { scrollTop: top, scrollHeight: height, clientHeight } = element;
    const near = height - top - clientHeight < NEAR;
    // Going up, while nothing has become shorter, is the reader's doing.
    if (near) stuck.current = true;
    else if (top < last.current.top - 1 && height >= last.current.height) stuck.current = false;
    last.current = { top, height };
    setAtEnd(stuck.current);
  };

  return (
    <div className="transcript">
      <h2 className="unseen">Conversation</h2>
      <div
        ref={scroller}
        className="transcript-scroller"
        onScroll={onScroll}
        role="log"
        aria-label="Conversation"
        aria-live={isLive ? "polite" : "off"}
        aria-relevant="additions"
        tabIndex={0}
      >
        <div className="transcript-rows" style={{ height: total }}>
          {virtualizer.getVirtualItems().map(({ index, key, start }) => (
            <div
              key={key}
              ref={virtualizer.measureElement}
              data-index={index}
              className="transcript-row"
              style={{ transform: `translateY(${start}px)` }}
            >
              <RowView
                row={rows[index] as Row}
                view={view}
                isLive={isLive}
                isFocused={isFocused(rows[index] as Row, focus)}
              />
            </div>
          ))}
        </div>
      </div>
      {!isAtEnd && (
        <Button
          className="transcript-to-end"
          onClick={() => {
            stuck.current = true;
            setAtEnd(true);
            toEnd();
          }}
        >
          <ArrowDown aria-hidden /> Latest
        </Button>
      )}
    </div>
  );
}

function isFocused(row: Row, focus: number | undefined): boolean {
  return focus !== undefined && row.kind === "item" && row.item.events.has(focus);
}

/** Near enough that little moves when the true height is known. */
function estimate(row: Row): number {
  if (row.kind !== "item") return 28;
  const { item } = row;
  if (item.type === "text") return 32 + Math.ceil(item.text.length / 90) * 24;
  if (item.type === "user") return 72;
  return 44;
}
