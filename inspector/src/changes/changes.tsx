/** Everything that a session did to files, as one review. */

import { Braces, ClipboardCopy, Columns2, Files, History, MessageSquare, Rows2 } from "lucide-react";
import { type ReactNode, type RefObject, useContext, useEffect, useMemo, useRef, useState } from "react";

import { isRefused } from "../waiting/outcome.js";
import { Badge, Button, EmptyState, IconButton, Loading, type Tone, copy, toast } from "../design/index.js";
import { isCovered, isTyping } from "../design/keys.js";
import { useKept } from "../design/kept.js";
import { useSessionLog, useSessionView, useShown } from "../log/hooks.js";
import { useSpot } from "../router.js";
import { countOf, linesOf } from "../text/changes.js";
import { Diff, DiffCount } from "../text/diff.js";
import { SafeText } from "../text/safe-text.js";
import { spelledOut } from "../text/visible.js";
import styles from "./changes.module.css";
import { AnsweredHere, answersFromHere } from "../waiting/answered-here.js";
import { patchOf } from "./patch.js";
import { type Change, type ChangeState, type Review, deciderOf, reviewOf } from "./review.js";

type Layout = "unified" | "split";
type Grouping = "file" | "turn";

export function Changes({ sessionId, at }: { readonly sessionId: string; readonly at: number | undefined }): ReactNode {
  const view = useSessionView(sessionId, at);
  const review = useMemo(() => reviewOf(view), [view]);
  const [layout, setLayout] = useKept<Layout>("changes.layout", "unified");
  const [grouping, setGrouping] = useKept<Grouping>("changes.grouping", "file");
  const answered = useMemo(() => answersFromHere(sessionId), [sessionId, review]);
  const groups = useMemo(() => groupsOf(review, grouping, view.cwd), [review, grouping, view.cwd]);
  const order = useMemo(() => groups.flatMap(({ changes }) => changes), [groups]);
  const { current, focus, room } = useReading(order, {
    u: () => setLayout(layout === "unified" ? "split" : "unified"),
    g: () => setGrouping(grouping === "file" ? "turn" : "file"),
  });
  const { reading } = useShown(useSessionLog(sessionId));
  if (review.changes.length === 0) {
    if (reading.state === "loading") return <Loading label="Loading the changes" />;
    return (
      <EmptyState icon={<Files />} title="No changes">
        {at === undefined ? "What the agent does to files comes here." : "Nothing had been changed at this moment."}
      </EmptyState>
    );
  }
  const patch = (): void => {
    const text = patchOf(review.files, view.cwd);
    if (text === "") toast("Nothing was changed for good", "bad");
    else void copy(text, "Patch copied: git apply takes it in the session's directory");
  };
  return (
    <section ref={room} className={styles.room} aria-label="Changes">
      <header className={styles.bar}>
        <Total review={review} />
        <div className={styles.tools}>
          <div role="group" aria-label="By" className={styles.group}>
            <IconButton label="By file" aria-pressed={grouping === "file"} onClick={() => setGrouping("file")}>
              <Files />
            </IconButton>
            <IconButton label="By turn" aria-pressed={grouping === "turn"} onClick={() => setGrouping("turn")}>
              <History />
            </IconButton>
          </div>
          <div role="group" aria-label="Layout" className={styles.group}>
            <IconButton label="Unified" aria-pressed={layout === "unified"} onClick={() => setLayout("unified")}>
              <Rows2 />
            </IconButton>
            <IconButton label="Side by side" aria-pressed={layout === "split"} onClick={() => setLayout("split")}>
              <Columns2 />
            </IconButton>
          </div>
          <Button onClick={patch}>
            <ClipboardCopy aria-hidden />
            Copy as a patch
          </Button>
        </div>
      </header>
      <div className={styles.panes}>
        <nav className={styles.index} aria-label="Changes">
          {groups.map(({ key, name, changes }) => (
            <div key={key} className={styles.entry}>
              <h2 title={spelledOut(name)}>
                <SafeText text={name} limit={200} />
              </h2>
              {changes.map((change) => (
                <button
                  key={change.key}
                  type="button"
                  aria-current={change.key === current || undefined}
                  onClick={() => focus(change.key)}
                >
                  <span className={styles.what}>
                    {grouping === "file" ? `Turn ${change.turnNumber}` : spelledOut(shortOf(change.path, view.cwd))}
                  </span>
                  {change.state !== "done" && <Badge tone={TONES[change.state]}>{WORDS[change.state]}</Badge>}
                  <Count change={change} />
                </button>
              ))}
            </div>
          ))}
        </nav>
        <AnsweredHere value={answered}>
          <div className={styles.cards} tabIndex={-1}>
            {groups.map(({ key, name, changes }) => (
              <section key={key} className={styles.cluster} aria-label={spelledOut(name)}>
                <h2 className={styles.title}>
                  <SafeText text={name} limit={300} />
                </h2>
                {changes.map((change) => (
                  <Card
                    key={change.key}
                    change={change}
                    layout={layout}
                    isCurrent={change.key === current}
                    path={grouping === "turn" ? shortOf(change.path, view.cwd) : undefined}
                    focus={focus}
                  />
                ))}
              </section>
            ))}
          </div>
        </AnsweredHere>
      </div>
    </section>
  );
}

interface Group {
  readonly key: string;
  readonly name: string;
  readonly changes: readonly Change[];
}

function groupsOf(review: Review, grouping: Grouping, cwd: string | undefined): readonly Group[] {
  if (grouping === "file") {
    return review.files.map(({ path, changes }) => ({ key: path, name: shortOf(path, cwd), changes }));
  }
  return review.turns.map(({ key, number, prompt, changes }) => ({
    key,
    name: `Turn ${number}${prompt === "" ? "" : ` · ${prompt.replace(/\s+/g, " ").slice(0, 120)}`}`,
    changes,
  }));
}

function shortOf(path: string, cwd: string | undefined): string {
  return cwd !== undefined && path.startsWith(`${cwd}/`) ? path.slice(cwd.length + 1) : path;
}

function Total({ review }: { readonly review: Review }): ReactNode {
  const { files, turns, changes } = review;
  const refused = changes.filter(({ state }) => state === "rejected").length;
  return (
    <p className={styles.total}>
      <strong>
        {changes.length} {changes.length === 1 ? "change" : "changes"}
      </strong>{" "}
      in {files.length} {files.length === 1 ? "file" : "files"}, {turns.length} {turns.length === 1 ? "turn" : "turns"}
      {refused > 0 && ` · ${refused} rejected`}
    </p>
  );
}

const counts = new WeakMap<Change, { added: number; removed: number }>();

function Count({ change }: { readonly change: Change }): ReactNode {
  let count = counts.get(change);
  if (count === undefined) {
    count = countOf(linesOf(change.before, change.after));
    counts.set(change, count);
  }
  return <DiffCount {...count} />;
}

interface CardProps {
  readonly change: Change;
  readonly layout: Layout;
  readonly isCurrent: boolean;
  /** Of the file, where its group does not say it. */
  readonly path: string | undefined;
  readonly focus: (key: string) => void;
}

function Card({ change, layout, isCurrent, path, focus }: CardProps): ReactNode {
  const { move } = useSpot();
  const { ref, isNear } = useNear();
  const rows = Math.min(40, change.after.split("\n", 60).length + 4);
  return (
    <article
      ref={ref}
      id={`change-${change.key}`}
      className={styles.card}
      data-current={isCurrent || undefined}
      data-state={change.state}
      onClick={() => focus(change.key)}
    >
      <header className={styles.head}>
        <div className={styles.asked}>
          {path !== undefined && (
            <strong className={styles.path}>
              <SafeText text={path} limit={300} />
            </strong>
          )}
          {path === undefined && (
            <p className={styles.prompt} title={change.prompt}>
              <span className={styles.turn}>Turn {change.turnNumber}</span>
              <SafeText text={change.prompt.slice(0, 300) || change.title} limit={300} />
            </p>
          )}
          <p className={styles.allowed}>
            <Allowed change={change} />
          </p>
        </div>
        {change.before === undefined && <Badge tone="accent">new file</Badge>}
        {change.state !== "done" && <Badge tone={TONES[change.state]}>{WORDS[change.state]}</Badge>}
        <Count change={change} />
        <IconButton size="small" label="Show in chat" onClick={() => move({ tab: "chat", event: change.event })}>
          <MessageSquare />
        </IconButton>
        <IconButton size="small" label="Show its envelope" onClick={() => move({ tab: "envelopes", event: change.event })}>
          <Braces />
        </IconButton>
      </header>
      {isNear ? (
        <Diff
          path={change.path}
          before={change.before}
          after={change.after}
          start={change.start}
          layout={layout}
          rows={40}
          bare
        />
      ) : (
        <div style={{ height: rows * 20 }} />
      )}
    </article>
  );
}

function Allowed({ change }: { readonly change: Change }): ReactNode {
  const answered = useContext(AnsweredHere);
  const { decision, requestKey, at } = change;
  const time = new Date(decision?.at ?? at).toLocaleTimeString("en-GB");
  if (requestKey === undefined) return `No permission was asked · ${time}`;
  if (decision === undefined) return "Waits for permission";
  const refused = decision.outcome === "answered" || decision.outcome === "rejected" ? "Rejected" : "Not allowed";
  const word = isRefused(decision) ? refused : "Allowed";
  const always = decision.optionKind?.endsWith("always") ? ", from now on" : "";
  return (
    <>
      {word} by {answered.has(requestKey) ? "you" : <SafeText text={deciderOf(decision)} limit={120} />}
      {always} · {time}
      {decision.reason !== undefined && (
        <>
          {" · "}
          <q>
            <SafeText text={decision.reason} limit={300} />
          </q>
        </>
      )}
    </>
  );
}

const WORDS: Record<ChangeState, string> = {
  done: "done",
  proposed: "proposed",
  rejected: "rejected",
  failed: "failed",
  unfinished: "not finished",
};

const TONES: Record<ChangeState, Tone> = {
  done: "ok",
  proposed: "waiting",
  rejected: "bad",
  failed: "bad",
  unfinished: "neutral",
};

/** Going from change to change: by `j` and `k`, or `n` and `p`; other keys do what is said. */
function useReading(
  order: readonly Change[],
  others: Readonly<Record<string, () => void>>,
): { current: string | undefined; focus: (key: string) => void; room: RefObject<HTMLElement | null> } {
  const room = useRef<HTMLElement>(null);
  const [current, setCurrent] = useState<string>();
  const focus = (key: string): void => {
    setCurrent(key);
    document.getElementById(`change-${key}`)?.scrollIntoView({ block: "nearest" });
  };
  const press = useRef<(event: KeyboardEvent) => void>(undefined);
  useEffect(() => {
    press.current = (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target) || isCovered()) return;
      const step = { j: 1, n: 1, k: -1, p: -1 }[event.key];
      const other = others[event.key];
      if (step !== undefined) {
        const now = order.findIndex(({ key }) => key === current);
        const next = order[now < 0 ? (step > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, now + step))];
        if (next) focus(next.key);
      } else if (other) other();
      else return;
      event.preventDefault();
    };
  });
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => press.current?.(event);
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, []);
  return { current, focus, room };
}

/** Whether an element is in view, or was: what is far away need not be drawn yet. */
function useNear(): { ref: RefObject<HTMLElement | null>; isNear: boolean } {
  const ref = useRef<HTMLElement>(null);
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    const element = ref.current;
    if (isNear || element === null) return undefined;
    const observer = new IntersectionObserver(
      (entries) => {
        if (entries.some(({ isIntersecting }) => isIntersecting)) setNear(true);
      },
      { rootMargin: "800px" },
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, [isNear]);
  return { ref, isNear };
}
