/** The difference of two texts: unified or side by side, with words and colours; only the rows in view are drawn. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { Fragment, memo, useMemo, useRef, useState, type ReactNode } from "react";

import { type Fold, type Line, type Pair, countOf, counterparts, folded, linesOf, paired, wordsOf } from "./changes.js";
import { ColouredPieces, useColours } from "./code.js";
import { CopyButton } from "./copy-button.js";
import type { Coloured } from "./highlighting.js";
import { type Start, WHOLE_FILE } from "./numbering.js";
import { SafeText } from "./safe-text.js";

import "./text.css";

const ROW = 20;
/** Few enough rows are simply there: they can be searched in the page, selected and printed. */
const PLAIN = 150;
/** Characters of a line that are shown. */
const MAX_LINE = 2_000;
/** Colouring more than so many characters would be felt. */
const BEYOND_LANGUAGES = 100_000;

export interface DiffProps {
  /** Of the file, to show and to choose colours by. */
  readonly path: string;
  /** Undefined for a file that was not there. */
  readonly before: string | undefined;
  readonly after: string;
  /** Where the texts begin in the file; without it, lines have no numbers, except for those of a new file. */
  readonly start?: Start | undefined;
  readonly layout?: "unified" | "split";
  /** How high it may become, in rows, before it scrolls; without it, it is as high as its content, up to 32 rows. */
  readonly rows?: number;
  /** Without its head: path, counts, copy. */
  readonly bare?: boolean;
}

/** What happened to a file. */
export const Diff = memo(function Diff({
  path,
  before,
  after,
  start = before === undefined ? WHOLE_FILE : undefined,
  layout = "unified",
  rows: most = 32,
  bare = false,
}: DiffProps): ReactNode {
  const lines = useMemo(() => linesOf(before, after), [before, after]);
  const [opened, setOpened] = useState<ReadonlySet<number>>(new Set());
  const rows = useMemo(() => {
    const visible = folded(lines, opened);
    return layout === "split" ? paired(visible) : visible;
  }, [lines, opened, layout]);
  const others = useMemo(() => counterparts(lines), [lines]);
  const small = (before?.length ?? 0) + after.length < BEYOND_LANGUAGES;
  const olds = useColours(small ? (before ?? "") : "", path);
  const news = useColours(small ? after : "", path);
  const count = useMemo(() => countOf(lines), [lines]);
  const colours = (line: Line): readonly Coloured[] | undefined =>
    line.new === undefined ? olds?.[(line.old as number) - 1] : news?.[line.new - 1];
  const show = (row: Line | Fold | Pair): ReactNode => {
    if (row.kind === "fold") return <FoldRow fold={row} open={() => setOpened(new Set([...opened, row.from]))} />;
    if (row.kind === "pair") {
      return (
        <div className="diff-row diff-row-split">
          <Side line={row.left} side="old" start={start} other={row.right} colours={colours} />
          <Side line={row.right} side="new" start={start} other={row.left} colours={colours} />
        </div>
      );
    }
    return <UnifiedRow line={row} start={start} other={others.get(row)} colours={colours} />;
  };
  return (
    <figure className={`diff diff-${layout}`} data-path={path}>
      {!bare && <DiffHead path={path} created={before === undefined} count={count} after={after} />}
      {lines.length === 0 ? (
        <p className="diff-empty">empty file</p>
      ) : (
        <Rows rows={rows} most={most} show={show} path={path} />
      )}
    </figure>
  );
});

function DiffHead({
  path,
  created,
  count,
  after,
}: {
  path: string;
  created: boolean;
  count: { added: number; removed: number };
  after: string;
}): ReactNode {
  return (
    <figcaption className="diff-head">
      <span className="diff-path">
        <SafeText text={path} limit={500} />
      </span>
      {created && <span className="diff-created">new file</span>}
      <DiffCount {...count} />
      <CopyButton text={after} label="Copy the new content" />
    </figcaption>
  );
}

/** How many lines come and go: `+12 −3`. */
export function DiffCount({ added, removed }: { readonly added: number; readonly removed: number }): ReactNode {
  return (
    <span className="diff-count">
      <span className="diff-count-added" aria-label={`${added} lines added`}>
        +{added}
      </span>{" "}
      <span className="diff-count-removed" aria-label={`${removed} lines removed`}>
        −{removed}
      </span>
    </span>
  );
}

interface RowsProps {
  readonly rows: readonly (Line | Fold | Pair)[];
  readonly most: number;
  readonly show: (row: Line | Fold | Pair) => ReactNode;
  readonly path: string;
}

function Rows({ rows, most, show, path }: RowsProps): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = rows.length > PLAIN;
  const height = Math.min(rows.length, most) * ROW + 2;
  const virtualizer = useVirtualizer({
    count: virtual ? rows.length : 0,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 20,
    initialRect: { width: 0, height },
  });
  const label = `changes of ${path}`;
  if (!virtual) {
    return (
      <div
        ref={scroller}
        className="diff-body"
        style={{ maxHeight: height }}
        tabIndex={0}
        role="group"
        aria-label={label}
        dir="ltr"
      >
        <div className="diff-rows">
          {rows.map((row, index) => (
            <Fragment key={index}>{show(row)}</Fragment>
          ))}
        </div>
      </div>
    );
  }
  return (
    <div ref={scroller} className="diff-body" style={{ height }} tabIndex={0} role="group" aria-label={label} dir="ltr">
      <div className="diff-rows diff-virtual" style={{ height: virtualizer.getTotalSize() }}>
        {virtualizer.getVirtualItems().map(({ index, start, key }) => (
          <div key={key} className="diff-placed" style={{ transform: `translateY(${start}px)` }}>
            {show(rows[index] as Line | Fold | Pair)}
          </div>
        ))}
      </div>
    </div>
  );
}

type Colours = (line: Line) => readonly Coloured[] | undefined;

const SIGNS = { same: " ", removed: "−", added: "+" } as const;

interface UnifiedRowProps {
  readonly line: Line;
  readonly start: Start | undefined;
  readonly other: Line | undefined;
  readonly colours: Colours;
}

function UnifiedRow({ line, start, other, colours }: UnifiedRowProps): ReactNode {
  return (
    <div className={`diff-row diff-${line.kind}`}>
      <LineNumber line={line} side="old" start={start} />
      <LineNumber line={line} side="new" start={start} />
      <Text line={line} other={other} colours={colours} />
    </div>
  );
}

/** A line's number in the file, where it is known. */
function LineNumber({ line, side, start }: { line: Line; side: "old" | "new"; start: Start | undefined }): ReactNode {
  if (start === undefined) return null;
  const number = line[side];
  return (
    <span className="diff-number" aria-hidden>
      {number === undefined ? "" : number + start[side] - 1}
    </span>
  );
}

interface SideProps {
  readonly line: Line | undefined;
  readonly side: "old" | "new";
  readonly start: Start | undefined;
  readonly other: Line | undefined;
  readonly colours: Colours;
}

function Side({ line, side, start, other, colours }: SideProps): ReactNode {
  if (line === undefined) return <div className="diff-side diff-none" />;
  return (
    <div className={`diff-side diff-${line.kind}`}>
      <LineNumber line={line} side={side} start={start} />
      <Text line={line} other={line === other ? undefined : other} colours={colours} />
    </div>
  );
}

function Text({ line, other, colours }: { line: Line; other: Line | undefined; colours: Colours }): ReactNode {
  const words = line.kind === "same" ? undefined : wordsOf(line, other);
  const coloured = words === undefined && line.text.length <= MAX_LINE ? colours(line) : undefined;
  return (
    <>
      <span className="diff-sign" aria-label={line.kind === "same" ? undefined : line.kind}>
        {SIGNS[line.kind]}
      </span>
      <span className="diff-text">
        {words ? (
          words.map((word, index) =>
            word.changed ? (
              <mark key={index} className="diff-word">
                <SafeText text={word.text} />
              </mark>
            ) : (
              <SafeText key={index} text={word.text} />
            ),
          )
        ) : coloured && isSame(coloured, line.text) ? (
          <ColouredPieces line={coloured} />
        ) : (
          <SafeText text={line.text} limit={MAX_LINE} />
        )}
      </span>
    </>
  );
}

/** Colours must never change what is shown. */
function isSame(coloured: readonly Coloured[], text: string): boolean {
  return coloured.map((piece) => piece.text).join("") === text;
}

function FoldRow({ fold, open }: { readonly fold: Fold; readonly open: () => void }): ReactNode {
  return (
    <button type="button" className="diff-row diff-fold" onClick={open}>
      {fold.lines.toLocaleString("en")} unchanged {fold.lines === 1 ? "line" : "lines"}
    </button>
  );
}
