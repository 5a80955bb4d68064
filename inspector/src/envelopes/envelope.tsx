/** All of one envelope: decoded and raw, what belongs to it, and the way to what people see of it. */

import { Copy, MessageSquare, SquareTerminal, X } from "lucide-react";
import { type ReactNode, useState } from "react";
import { JsonView, allExpanded, collapseAllNested } from "react-json-view-lite";

import { type LogEvent, isGap } from "../log/event.js";
import { Button, IconButton, Loading, Toggle, Toggles, copy, durationText, sizeText } from "../design/index.js";
import { showing } from "../log/items.js";
import type { Row, Rows } from "../log/rows.js";
import type { SessionLog } from "../log/session-log.js";
import { useSpot } from "../router.js";
import { SafeText } from "../text/safe-text.js";
import styles from "./envelopes.module.css";
import { curlOf } from "./exporting.js";
import { previewOf, sizeOf } from "./preview.js";

/** Bytes up to which everything is unfolded. */
const SMALL = 8_000;

interface EnvelopeProps {
  readonly log: SessionLog;
  readonly rows: Rows;
  readonly place: number;
  /** How many entries there are at this moment. */
  readonly upto: number;
  readonly choose: (place: number) => void;
  readonly close: () => void;
}

export function Envelope({ log, rows, place, upto, choose, close }: EnvelopeProps): ReactNode {
  const [raw, setRaw] = useState(false);
  const entry = log.entry(place);
  const row = rows.at(place) as Row;
  if (entry === undefined) {
    return (
      <aside className={styles.detail} aria-label="Envelope">
        <Head title={row.method || "response"} close={close} />
        <Loading label="Loading the envelope" />
      </aside>
    );
  }
  if (isGap(entry)) {
    return (
      <aside className={styles.detail} aria-label="Envelope">
        <Head title="Missing" close={close} />
        <p className={styles.facts}>{previewOf(entry)}</p>
      </aside>
    );
  }
  const size = sizeOf(entry);
  return (
    <aside className={styles.detail} aria-label="Envelope">
      <Head title={`${row.method || "response"}${row.subtype ? ` · ${row.subtype}` : ""}`} close={close} />
      <dl className={styles.facts}>
        <Fact name="Event">{row.id}</Fact>
        <Fact name="Kept at">{row.at}</Fact>
        <Fact name="Direction">{DIRECTIONS[entry.direction]}</Fact>
        {"id" in entry.envelope && <Fact name="Id">{JSON.stringify(entry.envelope.id)}</Fact>}
        <Fact name="Size">{sizeText(size)}</Fact>
        <Pair row={row} rows={rows} upto={upto} choose={choose} />
      </dl>
      <Actions log={log} event={entry} />
      <div className={styles.shape}>
        <Toggles label="Form">
          <Toggle on={!raw} onClick={() => setRaw(false)}>
            Decoded
          </Toggle>
          <Toggle on={raw} onClick={() => setRaw(true)}>
            Raw
          </Toggle>
        </Toggles>
      </div>
      <div className={styles.json} tabIndex={0} role="region" aria-label={raw ? "Raw envelope" : "Decoded envelope"}>
        {raw ? (
          <pre>
            <SafeText text={JSON.stringify(entry.envelope)} />
          </pre>
        ) : (
          <JsonView
            data={escaped(entry.envelope) as object}
            shouldExpandNode={size < SMALL ? allExpanded : collapseAllNested}
            style={LOOK}
            clickToExpandNode
          />
        )}
      </div>
    </aside>
  );
}

function Head({ title, close }: { readonly title: string; readonly close: () => void }): ReactNode {
  return (
    <header className={styles.head}>
      <h2>
        <SafeText text={title} limit={200} />
      </h2>
      <IconButton label="Close" onClick={close}>
        <X />
      </IconButton>
    </header>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: ReactNode }): ReactNode {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface PairProps {
  readonly row: Row;
  readonly rows: Rows;
  readonly upto: number;
  readonly choose: (place: number) => void;
}

function Pair({ row, rows, upto, choose }: PairProps): ReactNode {
  const { pair } = row;
  const other = pair === undefined || pair >= upto ? undefined : rows.at(pair);
  if (row.kind === "request" && other === undefined) return <Fact name="Response">none yet</Fact>;
  if (other === undefined) return null;
  return (
    <Fact name={row.kind === "request" ? "Response" : "Request"}>
      <button type="button" className={styles.link} onClick={() => choose(other.index)}>
        event {other.id}
      </button>
      {row.latency !== undefined && ` ${row.kind === "request" ? "after" : "before, took"} ${durationText(row.latency)}`}
    </Fact>
  );
}

function Actions({ log, event }: { readonly log: SessionLog; readonly event: LogEvent }): ReactNode {
  const { move } = useSpot();
  const found = showing(log.view(), event.id);
  return (
    <div className={styles.actions}>
      <Button size="small" onClick={() => void copy(JSON.stringify(event.envelope, undefined, 2), "Envelope copied")}>
        <Copy aria-hidden />
        Copy
      </Button>
      <Button
        size="small"
        onClick={() => void copy(curlOf(event, log.id, window.location.origin), "Copied: set TOKEN and CONNECTION first")}
      >
        <SquareTerminal aria-hidden />
        Copy as curl
      </Button>
      <Button size="small" disabled={found === undefined} onClick={() => move({ tab: "chat", event: event.id })}>
        <MessageSquare aria-hidden />
        Show in chat
      </Button>
    </div>
  );
}

/** Texts as JSON writes them, with what turns or hides letters written out as well. */
function escaped(value: unknown): unknown {
  if (typeof value === "string") {
    return JSON.stringify(value)
      .slice(1, -1)
      .replace(HIDING, (letter) => `\\u${(letter.codePointAt(0) as number).toString(16).padStart(4, "0")}`);
  }
  if (Array.isArray(value)) return value.map(escaped);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [escaped(name), escaped(each)]));
}

const HIDING = /[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

const DIRECTIONS = {
  fromClient: "client → agent",
  fromAgent: "agent → client",
  fromServer: "server → clients",
} as const;

const LOOK = {
  container: styles.tree ?? "",
  basicChildStyle: styles.branch ?? "",
  childFieldsContainer: styles.children ?? "",
  label: styles.name ?? "",
  clickableLabel: styles.name ?? "",
  nullValue: styles.nothing ?? "",
  undefinedValue: styles.nothing ?? "",
  numberValue: styles.number ?? "",
  stringValue: styles.string ?? "",
  booleanValue: styles.number ?? "",
  otherValue: styles.nothing ?? "",
  punctuation: styles.point ?? "",
  expandIcon: styles.expand ?? "",
  collapseIcon: styles.collapse ?? "",
  collapsedContent: styles.folded ?? "",
  noQuotesForStringValues: false,
  quotesForFieldNames: false,
  stringifyStringValues: false,
  ariaLables: { collapseJson: "fold", expandJson: "unfold" },
};
