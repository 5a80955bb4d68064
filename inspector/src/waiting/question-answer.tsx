/** Questions with choices, and room for a free answer. */

import { useId, useState, type FormEvent, type ReactNode } from "react";

import type { QuestionItem } from "sandboxagent";
import { Button, Input, Kbd } from "../design/index.js";
import { Markdown } from "../text/markdown.js";
import { SafeText } from "../text/safe-text.js";
import { useAnswerKeys } from "./answer-keys.js";
import type { AnswerProps } from "./permission-answer.js";

interface Given {
  readonly chosen: readonly string[];
  readonly own: string;
}

const NOTHING: Given = { chosen: [], own: "" };

export function QuestionAnswer({ asked, busy, answer, keys, compact }: AnswerProps<QuestionItem>): ReactNode {
  const { questions } = asked;
  const [given, setGiven] = useState<readonly Given[]>(() => questions.map(() => NOTHING));
  const set = (index: number, value: Given): void => setGiven(given.map((each, at) => (at === index ? value : each)));
  const [first] = questions;
  const isSimple = questions.length === 1 && first !== undefined && !first.multiSelect;
  const answers = given.map(({ chosen, own }) => [...chosen, ...(own.trim() === "" ? [] : [own.trim()])]);
  const isComplete = answers.every((each) => each.length > 0);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (isComplete) answer({ type: "answers", answers });
  };
  useAnswerKeys(keys && !busy, (key) => {
    if (key === "r") {
      answer({ type: "reject" });
      return true;
    }
    const option = /^[1-9]$/.test(key) ? first?.options[Number(key) - 1] : undefined;
    if (option === undefined) return false;
    if (isSimple) answer({ type: "answers", answers: [[option.id]] });
    else set(0, toggled(given[0] ?? NOTHING, option.id, first?.multiSelect ?? false));
    return true;
  });
  return (
    <form onSubmit={submit}>
      <div className="request-body">
        {questions.length > 1 && asked.prompt !== "" && (
          <p className="action-title">
            <SafeText text={asked.prompt} as="prose" />
          </p>
        )}
        {questions.map((question, index) => (
          <OneQuestion
            key={index}
            question={question}
            given={given[index] ?? NOTHING}
            set={(value) => set(index, value)}
            keys={keys && index === 0}
            busy={busy}
          />
        ))}
      </div>
      <div className="request-options">
        <Button type="submit" look="primary" size={compact ? "small" : "normal"} busy={busy} disabled={!isComplete}>
          Answer
        </Button>
        <Button
          look="danger"
          size={compact ? "small" : "normal"}
          disabled={busy}
          onClick={() => answer({ type: "reject" })}
        >
          Decline
        </Button>
        {keys && (
          <span className="request-hint" aria-hidden>
            <Kbd>R</Kbd> decline
          </span>
        )}
      </div>
    </form>
  );
}

interface OneQuestionProps {
  readonly question: QuestionItem["questions"][number];
  readonly given: Given;
  readonly set: (given: Given) => void;
  readonly keys: boolean;
  readonly busy: boolean;
}

function OneQuestion({ question, given, set, keys, busy }: OneQuestionProps): ReactNode {
  const name = useId();
  const type = question.multiSelect ? "checkbox" : "radio";
  return (
    <fieldset className="question" disabled={busy}>
      <legend className="question-text">
        {question.header && (
          <span className="question-header">
            <SafeText text={question.header} as="prose" limit={100} />
          </span>
        )}
        <Markdown text={question.question} />
      </legend>
      {question.options.map((option, index) => (
        <label key={index} className="choice">
          <input
            type={type}
            name={name}
            checked={given.chosen.includes(option.id)}
            onChange={() => set(toggled(given, option.id, question.multiSelect))}
          />
          <span className="choice-words">
            <SafeText text={option.label} as="prose" limit={500} />
            {option.description && (
              <span className="choice-description">
                <SafeText text={option.description} as="prose" limit={1_000} />
              </span>
            )}
          </span>
          {keys && index < 9 && <Kbd>{index + 1}</Kbd>}
        </label>
      ))}
      <Input
        aria-label={question.options.length > 0 ? "Another answer" : "Your answer"}
        placeholder={question.options.length > 0 ? "Another answer" : "Your answer"}
        value={given.own}
        onChange={(event) => set({ chosen: question.multiSelect ? given.chosen : [], own: event.target.value })}
      />
    </fieldset>
  );
}

function toggled(given: Given, id: string, several: boolean): Given {
  if (!several) return { chosen: [id], own: "" };
  const chosen = given.chosen.includes(id) ? given.chosen.filter((each) => each !== id) : [...given.chosen, id];
  return { ...given, chosen };
}
