/** What an agent asked, in the transcript: what became of it, and who decided. */

import { Check, Clock, X } from "lucide-react";
import { memo, useContext, type ReactNode } from "react";

import type { RequestItem } from "sandboxagent";
import { Markdown } from "../text/markdown.js";
import { SafeText } from "../text/safe-text.js";
import { ActionView } from "../waiting/action-view.js";
import { actionOf, summaryOf } from "../waiting/action.js";
import { AnsweredHere } from "../waiting/answered-here.js";
import { choiceOf, toneOf, whoOf } from "../waiting/outcome.js";
import { useFold } from "./folds.js";

export const SettledView = memo(function SettledView({
  asked,
  isLive,
}: {
  readonly asked: RequestItem;
  readonly isLive: boolean;
}): ReactNode {
  const answered = useContext(AnsweredHere);
  const [open, toggle] = useFold(asked.key, !isLive && asked.decision === undefined);
  const { decision } = asked;
  const tone = decision ? toneOf(asked, decision) : "waiting";
  return (
    <div className={`settled settled-${tone}`} data-outcome={decision?.outcome ?? "waiting"}>
      <button type="button" className="settled-head" aria-expanded={open} onClick={toggle}>
        {tone === "ok" ? (
          <Check aria-hidden size={14} />
        ) : tone === "waiting" ? (
          <Clock aria-hidden size={14} />
        ) : (
          <X aria-hidden size={14} />
        )}
        <span className="settled-choice">
          {decision ? (
            <SafeText text={choiceOf(asked, decision)} as="prose" limit={300} />
          ) : isLive ? (
            "Waiting for your answer"
          ) : (
            "Was waiting for an answer"
          )}
        </span>
        {decision && <span className="settled-who">by {whoOf(decision.by, answered.has(asked.key))}</span>}
        <span className={`settled-about settled-about-${asked.kind}`}>
          <SafeText text={aboutOf(asked)} as={asked.kind === "permission" ? "exact" : "prose"} limit={200} />
        </span>
      </button>
      {decision?.reason && (
        <p className="settled-reason">
          “<SafeText text={decision.reason} as="prose" limit={4_096} />”
        </p>
      )}
      {open && (
        <div className="settled-body">
          {asked.kind === "permission" ? (
            <ActionView action={actionOf(asked.toolCall)} />
          ) : (
            <Markdown text={wordsOf(asked)} />
          )}
        </div>
      )}
    </div>
  );
});

function aboutOf(asked: RequestItem): string {
  if (asked.kind === "permission") return summaryOf(actionOf(asked.toolCall));
  if (asked.kind === "elicitation") return asked.message;
  // Of one question its own words: what comes before them is the same for all that an agent asks.
  const [first, ...others] = asked.questions;
  return first !== undefined && others.length === 0 ? first.question : asked.prompt || (first?.question ?? "");
}

function wordsOf(asked: Exclude<RequestItem, { kind: "permission" }>): string {
  if (asked.kind === "elicitation") return asked.message;
  return asked.questions
    .map(({ question, options }) => [question, ...options.map(({ label }) => `- ${label}`)].join("\n\n"))
    .join("\n\n");
}
