/** Every envelope of a session: a line each, filters, and all of the one that is chosen. */

import { ArrowDownToLine, CirclePause, CirclePlay } from "lucide-react";
import { type ReactNode, useDeferredValue, useMemo, useState } from "react";

import { Button, EmptyState, IconButton, Loading, SearchField, Select, Toggle, Toggles } from "../design/index.js";
import { useSessionLog, useShown } from "../log/hooks.js";
import type { Rows, Way } from "../log/rows.js";
import type { SessionLog } from "../log/session-log.js";
import { useSpot } from "../router.js";
import { Envelope } from "./envelope.js";
import styles from "./envelopes.module.css";
import { download } from "./download.js";
import { EVERYTHING, type Filter, isOpen } from "./filter.js";
import { EnvelopeList } from "./list.js";
import { useListed } from "./use-rows.js";

export function Envelopes({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  const log = useSessionLog(sessionId);
  const { length, reading } = useShown(log);
  const { spot, move } = useSpot();
  const [paused, setPaused] = useState<number>();
  const [filter, setFilter] = useState(EVERYTHING);
  const { rows } = log;
  const now = at === undefined ? length : log.countAt(at);
  const upto = Math.min(now, paused ?? now);
  const listed = useListed(log, useDeferredValue(filter), upto);
  const chosen = spot.event === undefined ? undefined : placeOf(log, spot.event);
  const choose = (place: number | undefined): void =>
    move({ event: place === undefined ? undefined : rows.at(place)?.id }, { replace: true });
  return (
    <section className={styles.room} aria-label="Envelopes">
      <header className={styles.bar}>
        <Filters filter={filter} change={setFilter} rows={rows} />
        <span className={styles.count} aria-live="polite">
          {isOpen(filter) ? "" : `${listed.count.toLocaleString("en")} of `}
          {upto.toLocaleString("en")}
          {!listed.done && " …"}
          {paused !== undefined && now > paused && ` · ${(now - paused).toLocaleString("en")} new`}
        </span>
        <IconButton
          label={paused === undefined ? "Pause" : "Resume"}
          aria-pressed={paused !== undefined}
          onClick={() => setPaused(paused === undefined ? upto : undefined)}
        >
          {paused === undefined ? <CirclePause /> : <CirclePlay />}
        </IconButton>
        <Button look="quiet" onClick={() => void download(log, now)}>
          <ArrowDownToLine aria-hidden />
          Export
        </Button>
      </header>
      <div className={styles.panes} data-open={chosen !== undefined || undefined}>
        {upto === 0 && reading.state === "loading" ? (
          <Loading label="Loading the envelopes" />
        ) : upto === 0 ? (
          <EmptyState title="No envelopes yet">What clients, the server and the agent say to each other comes here.</EmptyState>
        ) : listed.count === 0 && listed.done ? (
          <EmptyState title="No envelope matches" actions={<Button onClick={() => setFilter(EVERYTHING)}>Clear filters</Button>} />
        ) : (
          <EnvelopeList log={log} rows={rows} listed={listed} chosen={chosen} choose={choose} follow={paused === undefined} />
        )}
        {chosen !== undefined && (
          <Envelope
            key={chosen}
            log={log}
            rows={rows}
            place={chosen}
            upto={now}
            choose={choose}
            close={() => choose(undefined)}
          />
        )}
      </div>
    </section>
  );
}

const WAYS: readonly (readonly [Way, string])[] = [
  ["toAgent", "To agent"],
  ["fromAgent", "From agent"],
  ["fromServer", "Server"],
];

interface FiltersProps {
  readonly filter: Filter;
  readonly change: (filter: Filter) => void;
  readonly rows: Rows;
}

function Filters({ filter, change, rows }: FiltersProps): ReactNode {
  const { methods } = rows;
  const names = useMemo(() => [...methods.keys()].filter((name) => name !== "").sort(), [methods, methods.size]);
  const kinds = [...(methods.get(filter.method)?.keys() ?? [])].filter((kind) => kind !== "").sort();
  const toggle = (way: Way): void => {
    const ways = new Set(filter.ways);
    if (!ways.delete(way)) ways.add(way);
    change({ ...filter, ways: ways.size === 0 ? EVERYTHING.ways : ways });
  };
  return (
    <div className={styles.filters} role="search">
      <SearchField
        label="Search envelopes"
        className={styles.search ?? ""}
        value={filter.text}
        onChange={(event) => change({ ...filter, text: event.target.value })}
      />
      <Toggles label="Direction">
        {WAYS.map(([way, name]) => (
          <Toggle key={way} on={filter.ways.has(way)} onClick={() => toggle(way)}>
            {name}
          </Toggle>
        ))}
      </Toggles>
      <Select
        aria-label="Method"
        className={styles.select ?? ""}
        value={filter.method}
        onChange={(event) => change({ ...filter, method: event.target.value, subtype: "" })}
      >
        <option value="">All methods</option>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </Select>
      {kinds.length > 0 && (
        <Select
          aria-label="Kind"
          className={styles.select ?? ""}
          value={filter.subtype}
          onChange={(event) => change({ ...filter, subtype: event.target.value })}
        >
          <option value="">All kinds</option>
          {kinds.map((kind) => (
            <option key={kind}>{kind}</option>
          ))}
        </Select>
      )}
      <Toggle on={filter.errors} onClick={() => change({ ...filter, errors: !filter.errors })}>
        Errors
      </Toggle>
    </div>
  );
}

function placeOf(log: SessionLog, event: number): number | undefined {
  const count = log.countAt(event);
  return count > 0 ? count - 1 : undefined;
}
