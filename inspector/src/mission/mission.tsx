/** All sessions at once: what each is doing, what waits for you, and what it has used. */

import { LayoutGrid } from "lucide-react";
import { type ReactNode, Suspense, lazy, useDeferredValue, useEffect, useMemo, useRef, useState } from "react";

import type { SessionStatus } from "sandboxagent";
import { Button, EmptyState, Loading, STATES, SearchField, Select, Toggle, Toggles } from "../design/index.js";
import { isCovered, isTyping } from "../design/keys.js";
import { go } from "../router.js";
import { useInventory, useServer } from "../server/index.js";
import { answerAsked } from "../waiting/answering.js";
import { openRequestsOf } from "../waiting/open-requests.js";
import { ALL, type Wanted, costText, countsOf, listed, tokensText, usedBy } from "./listing.js";
import styles from "./mission.module.css";
import { useWaiting } from "./open-questions.js";
import type { QuestionsProps } from "./questions.js";
import { SessionTable } from "./session-table.js";

// Cards show diffs and Markdown, and most visits have no use for either.
const Questions = lazy(async () => ({ default: (await import("./questions.js")).Questions }));

export function Mission(): ReactNode {
  const { client } = useServer();
  const { sessions, loaded } = useInventory();
  const [wanted, setWanted] = useState(ALL);
  const shown = useDeferredValue(wanted);
  const found = useMemo(() => listed(sessions, shown), [sessions, shown]);
  const waiting = useWaiting(sessions);
  // Once something has been asked, what became of the last answer may have to be said.
  const hasAsked = useRef(false);
  hasAsked.current ||= waiting.length > 0;
  const answer: QuestionsProps["onAnswer"] = async ({ session, asked }, given) => {
    // Only a client that is attached is asked, and may answer.
    await client.sessions.attach(session.sessionId);
    await answerAsked(client, openRequestsOf(client), session.sessionId, asked, given);
  };
  if (!loaded) return <Loading label="Loading the sessions" />;
  if (sessions.length === 0) {
    return (
      <EmptyState
        first
        icon={<LayoutGrid />}
        title="No sessions yet"
        actions={
          <Button look="primary" onClick={() => go({ room: "new" })}>
            New session
          </Button>
        }
      >
        Every session of this server comes here, whichever client made it.
      </EmptyState>
    );
  }
  return (
    <section className={styles.room} aria-label="Mission control">
      <Head wanted={wanted} change={setWanted} />
      {hasAsked.current && shown.state !== "idle" && shown.state !== "ended" && (
        <Suspense>
          <Questions waiting={waiting} onAnswer={answer} />
        </Suspense>
      )}
      {found.length === 0 ? (
        <EmptyState title="No session matches" actions={<Button onClick={() => setWanted(ALL)}>Clear filters</Button>} />
      ) : (
        <SessionTable sessions={found} />
      )}
    </section>
  );
}

const CHOICES: readonly (SessionStatus | "all")[] = ["all", "waiting", "running", "idle", "ended"];

function Head({ wanted, change }: { readonly wanted: Wanted; readonly change: (wanted: Wanted) => void }): ReactNode {
  const { sessions } = useInventory();
  const search = useRef<HTMLInputElement>(null);
  const counts = countsOf(sessions);
  const { tokens, cost } = usedBy(sessions);
  const agents = useMemo(() => [...new Set(sessions.map(({ agent }) => agent))].sort(), [sessions]);
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.key !== "/" || isTyping(event.target) || isCovered()) return;
      event.preventDefault();
      search.current?.focus();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
  return (
    <header className={styles.head}>
      <h1 className={styles.title}>Mission control</h1>
      <Toggles label="State">
        {CHOICES.map((state) => (
          <Toggle
            key={state}
            on={wanted.state === state}
            count={counts[state]}
            onClick={() => change({ ...wanted, state })}
          >
            {state === "all" ? "All" : STATES[state]}
          </Toggle>
        ))}
      </Toggles>
      <span className={styles.used}>
        {[tokens > 0 && `${tokensText(tokens)} tokens`, cost && costText(cost)].filter(Boolean).join(" · ")}
      </span>
      {agents.length > 1 && (
        <Select
          aria-label="Agent"
          className={styles.agent ?? ""}
          value={wanted.agent}
          onChange={(event) => change({ ...wanted, agent: event.target.value })}
        >
          <option value="">All agents</option>
          {agents.map((agent) => (
            <option key={agent}>{agent}</option>
          ))}
        </Select>
      )}
      <SearchField
        ref={search}
        label="Find sessions"
        className={styles.search ?? ""}
        value={wanted.text}
        onChange={(event) => change({ ...wanted, text: event.target.value })}
        onKeyDown={(event) => event.key === "Escape" && change({ ...wanted, text: "" })}
      />
    </header>
  );
}
