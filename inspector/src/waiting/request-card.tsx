/**
 * Something that an agent asks, with what it is about and ways to answer. It knows no server: give it what was asked
 * and a function that takes the answer.
 */

import { FileQuestion, ListChecks, ShieldQuestion } from "lucide-react";
import { useState, type ReactNode } from "react";

import type { RequestItem, ToolCallItem } from "sandboxagent";
import { ErrorNote } from "../design/index.js";
import type { Answer } from "./answering.js";
import { FormAnswer } from "./form-answer.js";
import { PermissionAnswer } from "./permission-answer.js";
import { QuestionAnswer } from "./question-answer.js";

import "./waiting.css";

export interface RequestCardProps {
  readonly asked: RequestItem;
  /** Who asks: the agent's name. */
  readonly agent?: string | undefined;
  /** What is known of the tool call that a permission is for. */
  readonly tool?: ToolCallItem | undefined;
  /** Takes the answer to the agent; when it rejects, the card says why and can be answered again. */
  readonly onAnswer: (answer: Answer) => Promise<void>;
  /** Whether the keys 1 to 9, A and R answer this card. Only one card of a page should have them. */
  readonly keys?: boolean;
  /** Less room: in a list of many sessions. */
  readonly compact?: boolean;
  /** What stands at the end of its head, such as a link to the session. */
  readonly aside?: ReactNode;
}

const WORDS = {
  permission: "asks for permission",
  question: "has a question",
  elicitation: "needs your input",
} as const;

/** A request of an agent's that waits for an answer. */
export function RequestCard(props: RequestCardProps): ReactNode {
  const { asked, agent, onAnswer, keys = false, compact = false, aside } = props;
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>();
  const answer = (given: Answer): void => {
    if (busy) return;
    setBusy(true);
    setFailure(undefined);
    onAnswer(given).then(
      // The card goes when the server says that it is settled; until then it must not be answered twice.
      () => undefined,
      (error: unknown) => {
        setBusy(false);
        setFailure(error);
      },
    );
  };
  const common = { busy, answer, keys, compact };
  return (
    <div
      // No landmark: several may ask the same.
      role="group"
      className={`request ${compact ? "request-compact" : ""}`}
      aria-label={`${agent ?? "The agent"} ${WORDS[asked.kind]}`}
      data-request={asked.key}
      data-kind={asked.kind}
    >
      <header className="request-head">
        <Icon kind={asked.kind} />
        <span className="request-who">
          <strong>{agent ?? "The agent"}</strong> {WORDS[asked.kind]}
        </span>
        {aside && <span className="request-aside">{aside}</span>}
      </header>
      {asked.kind === "permission" && <PermissionAnswer {...common} asked={asked} tool={props.tool} />}
      {asked.kind === "question" && <QuestionAnswer {...common} asked={asked} />}
      {asked.kind === "elicitation" && <FormAnswer {...common} asked={asked} />}
      {failure !== undefined && <ErrorNote title="The answer was not accepted" error={failure} />}
    </div>
  );
}

function Icon({ kind }: { readonly kind: RequestItem["kind"] }): ReactNode {
  const props = { "aria-hidden": true, className: "request-icon", size: 16 } as const;
  if (kind === "permission") return <ShieldQuestion {...props} />;
  return kind === "question" ? <FileQuestion {...props} /> : <ListChecks {...props} />;
}
