/** What a command wrote, as a terminal shows it: with colours, and with nothing that could act on the page. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useLayoutEffect, useMemo, useRef, type CSSProperties, type ReactNode } from "react";

import { SafeText } from "./safe-text.js";
import { type Run, type Style, paletteColor, screenOf } from "./terminal.js";

import "./text.css";

const ROW = 18;
const PLAIN = 200;

export interface AnsiProps {
  readonly output: string;
  /** What a screen reader calls it. */
  readonly label?: string;
  /** How many lines are in view at most. */
  readonly rows?: number;
}

/** The output of a command. It stays at its end while it grows, unless the reader has scrolled up. */
export const Ansi = memo(function Ansi({ output, label = "output", rows = 18 }: AnsiProps): ReactNode {
  const screen = useMemo(() => screenOf(output), [output]);
  const lines = trimmed(screen.lines);
  const scroller = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const virtual = lines.length > PLAIN;
  const virtualizer = useVirtualizer({
    count: virtual ? lines.length : 0,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 20,
    initialRect: { width: 0, height: rows * ROW },
  });
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [screen]);
  const onScroll = (): void => {
    const element = scroller.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < ROW;
  };
  const height = rows * ROW + 16;
  return (
    <div className="ansi">
      {screen.omitted > 0 && (
        <p className="ansi-omitted">{screen.omitted.toLocaleString("en")} earlier characters are not shown</p>
      )}
      <div
        ref={scroller}
        className="ansi-screen"
        style={virtual ? { height } : { maxHeight: height }}
        onScroll={onScroll}
        tabIndex={0}
        role="region"
        aria-label={label}
        dir="ltr"
      >
        {virtual ? (
          <div className="ansi-virtual" style={{ height: virtualizer.getTotalSize() }}>
            {virtualizer.getVirtualItems().map(({ index, start, key }) => (
              <div key={key} className="ansi-line ansi-placed" style={{ transform: `translateY(${start}px)` }}>
                <LineView line={lines[index] as readonly Run[]} />
              </div>
            ))}
          </div>
        ) : (
          lines.map((line, index) => (
            <div key={index} className="ansi-line">
              <LineView line={line} />
            </div>
          ))
        )}
      </div>
    </div>
  );
});

const LineView = memo(function LineView({ line }: { readonly line: readonly Run[] }): ReactNode {
  if (line.length === 0) return "\u00a0";
  return line.map(({ text, style }, index) => (
    <span key={index} className={classesOf(style)} style={coloursOf(style)}>
      <SafeText text={text} as="prose" limit={4_000} />
    </span>
  ));
});

function trimmed(lines: Screenful): Screenful {
  let end = lines.length;
  while (end > 1 && lines[end - 1]?.length === 0) end -= 1;
  return end === lines.length ? lines : lines.slice(0, end);
}

type Screenful = readonly (readonly Run[])[];

function classesOf({ color, background, bold, dim, italic, underline, strike }: Style): string | undefined {
  const classes = [
    typeof color === "number" && color < 16 && `ansi-fg-${color}`,
    typeof background === "number" && background < 16 && `ansi-bg-${background}`,
    bold && "ansi-bold",
    dim && "ansi-dim",
    italic && "ansi-italic",
    underline && "ansi-underline",
    strike && "ansi-strike",
  ].filter(Boolean);
  return classes.length > 0 ? classes.join(" ") : undefined;
}

/** Colours of an agent's choice never hide text: without a background of their own they are mixed with the theme's. */
function coloursOf({ color, background }: Style): CSSProperties | undefined {
  const of = (value: Style["color"]): string | undefined =>
    typeof value === "string" ? value : value !== undefined && value >= 16 ? paletteColor(value) : undefined;
  const [front, back] = [of(color), of(background)];
  if (front === undefined && back === undefined) return undefined;
  const readable = front && `color-mix(in oklab, ${front} 62%, var(--text))`;
  const soft = back && `color-mix(in oklab, ${back} 28%, var(--sunken))`;
  return { ...(readable && { color: readable }), ...(soft && { backgroundColor: soft }) };
}
