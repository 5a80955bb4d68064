/** A scrubber over a session's log: to any moment, step by step, at any speed, and back to now. */

import { Pause, Play, SkipBack, SkipForward, StepBack, StepForward } from "lucide-react";
import { type KeyboardEvent, type PointerEvent, type ReactNode, memo, useEffect, useMemo, useRef, useState } from "react";

import { Button, IconButton, Select } from "../design/index.js";
import { useSessionLog, useShown } from "../log/hooks.js";
import type { SessionLog } from "../log/session-log.js";
import { useSpot } from "../router.js";
import { type Mark, type Stretch, pastOf } from "./marks.js";
import { Player, SPEEDS, type Speed } from "./player.js";
import styles from "./timeline.module.css";

export function Timeline({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  const log = useSessionLog(sessionId);
  const { length, view, reading } = useShown(log);
  const { move } = useSpot();
  const [speed, setSpeed] = useState<Speed>(1);
  const past = useMemo(() => pastOf(view, log), [view, log]);
  const count = at === undefined ? length : Math.min(length, log.countAt(at));
  const isLive = reading.state !== "complete";
  const to = (wanted: number, isMoving = false): void => {
    const next = Math.max(0, Math.min(length, wanted));
    move({ at: next >= length && isLive ? undefined : idAt(log, next) }, { replace: true, soon: isMoving });
  };
  const { playing, toggle, stop } = usePlaying(log, count, speed, to);
  const step = (by: number): void => {
    stop();
    to(count + by);
  };
  const turn = (way: -1 | 1): void => {
    stop();
    to(nextTurn(past.stretches, count, way) ?? (way < 0 ? 0 : length));
  };
  if (length === 0) return null;
  return (
    <div className={styles.bar} role="group" aria-label="Timeline" data-past={at !== undefined || undefined}>
      <IconButton size="small" label="Previous turn" onClick={() => turn(-1)}>
        <SkipBack />
      </IconButton>
      <IconButton size="small" label="One event back" onClick={() => step(-1)}>
        <StepBack />
      </IconButton>
      <IconButton size="small" label={playing ? "Pause" : "Play"} onClick={toggle}>
        {playing ? <Pause /> : <Play />}
      </IconButton>
      <IconButton size="small" label="One event forward" onClick={() => step(1)}>
        <StepForward />
      </IconButton>
      <IconButton size="small" label="Next turn" onClick={() => turn(1)}>
        <SkipForward />
      </IconButton>
      <Track
        count={count}
        length={length}
        log={log}
        past={past}
        to={(wanted, isMoving) => {
          stop();
          to(wanted, isMoving);
        }}
        step={step}
        turn={turn}
      />
      <output className={styles.where}>
        {at === undefined ? length.toLocaleString("en") : `${count.toLocaleString("en")} / ${length.toLocaleString("en")}`}
        <span className={styles.time}>{timeAt(log, count)}</span>
      </output>
      <Select
        aria-label="Speed"
        className={styles.speed ?? ""}
        value={speed}
        onChange={(event) => setSpeed(Number(event.target.value) as Speed)}
      >
        {SPEEDS.map((each) => (
          <option key={each} value={each}>
            {each}×
          </option>
        ))}
      </Select>
      {isLive ? (
        <Button
          size="small"
          look={at === undefined ? "quiet" : "primary"}
          className={styles.live ?? ""}
          aria-pressed={at === undefined}
          onClick={() => {
            stop();
            move({ at: undefined });
          }}
        >
          {at === undefined ? "Live" : "Back to live"}
        </Button>
      ) : null}
    </div>
  );
}

interface Playing {
  readonly playing: boolean;
  readonly toggle: () => void;
  readonly stop: () => void;
}

function usePlaying(log: SessionLog, count: number, speed: Speed, to: (count: number, isMoving: boolean) => void): Playing {
  const [playing, setPlaying] = useState(false);
  const current = useRef({ to, speed });
  useEffect(() => {
    current.current = { to, speed };
  });
  const start = useRef(count);
  useEffect(() => {
    if (!playing) return undefined;
    const player = new Player(log, start.current);
    let last = performance.now();
    let frame = requestAnimationFrame(function play(now) {
      const before = player.count;
      const after = player.advance(now - last, current.current.speed);
      last = now;
      if (after !== before) current.current.to(after, true);
      if (player.isOver) setPlaying(false);
      else frame = requestAnimationFrame(play);
    });
    return () => cancelAnimationFrame(frame);
  }, [log, playing]);
  const toggle = (): void => {
    // At the end there is nothing more to play: from the beginning then.
    start.current = count >= log.length ? 0 : count;
    setPlaying(!playing);
  };
  return { playing, toggle, stop: () => setPlaying(false) };
}

interface TrackProps {
  readonly count: number;
  readonly length: number;
  readonly log: SessionLog;
  readonly past: { readonly stretches: readonly Stretch[]; readonly marks: readonly Mark[] };
  readonly to: (count: number, isMoving: boolean) => void;
  readonly step: (by: number) => void;
  readonly turn: (way: -1 | 1) => void;
}

function Track({ count, length, log, past, to, step, turn }: TrackProps): ReactNode {
  const track = useRef<HTMLDivElement>(null);
  const wanted = (event: PointerEvent): number => {
    const box = (track.current as HTMLDivElement).getBoundingClientRect();
    return Math.round(((event.clientX - box.left) / Math.max(1, box.width)) * length);
  };
  const press = (event: PointerEvent<HTMLDivElement>): void => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    to(wanted(event), true);
  };
  const drag = (event: PointerEvent<HTMLDivElement>): void => {
    if (event.currentTarget.hasPointerCapture(event.pointerId)) to(wanted(event), true);
  };
  const key = (event: KeyboardEvent): void => {
    const many = event.shiftKey ? 10 : 1;
    if (event.key === "ArrowLeft" || event.key === "ArrowDown") step(-many);
    else if (event.key === "ArrowRight" || event.key === "ArrowUp") step(many);
    else if (event.key === "PageDown") turn(-1);
    else if (event.key === "PageUp") turn(1);
    else if (event.key === "Home") to(0, false);
    else if (event.key === "End") to(length, false);
    else return;
    event.preventDefault();
  };
  return (
    <div
      ref={track}
      className={styles.track}
      role="slider"
      tabIndex={0}
      aria-label="Moment"
      aria-valuemin={0}
      aria-valuemax={length}
      aria-valuenow={count}
      aria-valuetext={`event ${count} of ${length}${timeAt(log, count) && `, ${timeAt(log, count)}`}`}
      onPointerDown={press}
      onPointerMove={drag}
      onKeyDown={key}
    >
      <Past past={past} length={length} />
      <div className={styles.done} style={{ width: percent(count, length) }} />
      <div className={styles.thumb} style={{ left: percent(count, length) }} />
    </div>
  );
}

/** Most turns and marks that can be told apart on a screen. */
const MAX_MARKS = 400;

const Past = memo(function Past({ past, length }: Pick<TrackProps, "past" | "length">): ReactNode {
  return (
    <div className={styles.past} aria-hidden>
      {thinned(past.stretches).map(({ key, from, to, state, title }) => (
        <span
          key={key}
          className={styles.stretch}
          data-state={state}
          title={title}
          style={{ left: percent(from, length), width: percent(to - from, length) }}
        />
      ))}
      {thinned(past.marks).map(({ key, at, kind }) => (
        <span key={key} className={styles.mark} data-kind={kind} style={{ left: percent(at, length) }} />
      ))}
    </div>
  );
});

function thinned<Each>(all: readonly Each[]): readonly Each[] {
  if (all.length <= MAX_MARKS) return all;
  const every = all.length / MAX_MARKS;
  return Array.from({ length: MAX_MARKS }, (_, index) => all[Math.floor(index * every)] as Each);
}

function percent(part: number, whole: number): string {
  return `${((part / Math.max(1, whole)) * 100).toFixed(3)}%`;
}

/** The place where the turn before or after a place begins. */
function nextTurn(stretches: readonly Stretch[], count: number, way: -1 | 1): number | undefined {
  const starts = stretches.map(({ from }) => from + 1);
  return way < 0 ? starts.findLast((start) => start < count) : starts.find((start) => start > count);
}

/** The id of the last event among the first entries; 0 before the first. */
function idAt(log: SessionLog, count: number): number {
  return log.rows.idAt(count - 1) ?? 0;
}

function timeAt(log: SessionLog, count: number): string {
  const time = log.rows.timeAt(count - 1);
  return time === undefined ? "" : new Date(time).toLocaleTimeString("en-GB");
}
