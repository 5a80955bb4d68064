/** What waits for a person in all sessions, to be answered right there. */

import { type ReactNode, useState } from "react";

import { Button, ErrorNote } from "../design/index.js";
import { Link } from "../router.js";
import { titleOf } from "../server/index.js";
import { SafeText } from "../text/safe-text.js";
import type { Answer } from "../waiting/answering.js";
import { RequestCard } from "../waiting/request-card.js";
import styles from "./mission.module.css";
import type { Waiting } from "./open-questions.js";

/** Requests that are shown at once. */
const MAX_QUESTIONS = 12;

export interface QuestionsProps {
  readonly waiting: readonly Waiting[];
  /** Takes the answer to the agent; when it rejects, the page says why. */
  readonly onAnswer: (to: Waiting, answer: Answer) => Promise<void>;
}

export function Questions({ waiting, onAnswer }: QuestionsProps): ReactNode {
  const [all, setAll] = useState(false);
  const [failed, setFailed] = useState<{ readonly to: Waiting; readonly error: unknown }>();
  // A card that is still there says it itself.
  const missed = failed && !waiting.some(({ asked }) => asked.key === failed.to.asked.key) ? failed : undefined;
  if (waiting.length === 0 && missed === undefined) return null;
  const shown = all ? waiting : waiting.slice(0, MAX_QUESTIONS);
  const answer = async (to: Waiting, given: Answer): Promise<void> => {
    setFailed(undefined);
    try {
      await onAnswer(to, given);
    } catch (error) {
      setFailed({ to, error });
      throw error;
    }
  };
  return (
    <section className={styles.questions} aria-label="Waiting for you" data-all={all || undefined}>
      {missed && (
        <ErrorNote
          title="The answer was not accepted"
          error={missed.error}
          actions={<Button onClick={() => setFailed(undefined)}>Dismiss</Button>}
        >
          <SessionLink of={missed.to} />
        </ErrorNote>
      )}
      {shown.map((each, index) => (
        <RequestCard
          key={each.asked.key}
          compact
          keys={index === 0}
          asked={each.asked}
          agent={each.session.agent}
          onAnswer={(given) => answer(each, given)}
          aside={<SessionLink of={each} />}
        />
      ))}
      {waiting.length > shown.length && (
        <Button look="quiet" onClick={() => setAll(true)}>
          {waiting.length - shown.length} more
        </Button>
      )}
    </section>
  );
}

function SessionLink({ of: { session } }: { readonly of: Waiting }): ReactNode {
  return (
    <Link to={{ room: "session", id: session.sessionId }}>
      <SafeText text={titleOf(session)} as="prose" limit={80} />
    </Link>
  );
}
