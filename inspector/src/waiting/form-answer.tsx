/** A form to fill in, or an address to visit. */

import { ExternalLink } from "lucide-react";
import { useId, useMemo, useState, type FormEvent, type ReactNode } from "react";

import type { ElicitationItem } from "sandboxagent";
import { Button, Field, Input, Kbd, Select, TextArea } from "../design/index.js";
import { followable, Markdown } from "../text/markdown.js";
import { SafeText } from "../text/safe-text.js";
import { spelledOut } from "../text/visible.js";
import { useAnswerKeys } from "./answer-keys.js";
import { type Field as FormField, type Value, contentOf, fieldsOf, missing } from "./form-fields.js";
import type { AnswerProps } from "./permission-answer.js";

/** Up to so many choices are shown at once; more are a list to open. */
const MAX_SHOWN = 8;

export function FormAnswer({ asked, busy, answer, keys, compact }: AnswerProps<ElicitationItem>): ReactNode {
  const fields = useMemo(() => fieldsOf(asked.schema), [asked.schema]);
  const [values, setValues] = useState<Readonly<Record<string, Value>>>(() =>
    Object.fromEntries(fields.map(({ name, initial }) => [name, initial])),
  );
  const [tried, setTried] = useState(false);
  const wrong = missing(fields, values);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    setTried(true);
    if (Object.keys(wrong).length > 0) return;
    const isVisit = asked.mode === "url";
    answer({ type: "content", content: isVisit ? undefined : contentOf(fields, values) });
  };
  const [choice, ...choices] = fields.filter(({ type }) => type === "one");
  // A form that is one question in disguise is answered by a number, as questions are.
  const isQuestion =
    choice !== undefined &&
    choices.length === 0 &&
    fields.every((each) => each === choice || (each.type === "text" && !each.required));
  useAnswerKeys(keys && !busy, (key) => {
    if (key === "r") {
      answer({ type: "reject" });
      return true;
    }
    const chosen = isQuestion && /^[1-9]$/.test(key) ? choice.choices[Number(key) - 1] : undefined;
    if (chosen === undefined || choice === undefined) return false;
    answer({ type: "content", content: contentOf(fields, { ...values, [choice.name]: chosen.value }) });
    return true;
  });
  const size = compact ? "small" : "normal";
  return (
    <form onSubmit={submit} noValidate>
      <div className="request-body">
        {asked.message !== "" && <Markdown text={asked.message} />}
        {asked.url !== undefined && <Address url={asked.url} />}
        {fields.length > 0 && (
          <div className="form-fields">
            {fields.map((field) => (
              <OneField
                key={field.name}
                field={field}
                value={values[field.name]}
                set={(value) => setValues({ ...values, [field.name]: value })}
                error={tried ? wrong[field.name] : undefined}
                busy={busy}
                keys={keys && isQuestion}
              />
            ))}
          </div>
        )}
      </div>
      <div className="request-options">
        <Button type="submit" look="primary" size={size} busy={busy}>
          {asked.mode === "url" ? "Done" : "Submit"}
        </Button>
        <Button look="danger" size={size} disabled={busy} onClick={() => answer({ type: "reject" })}>
          Decline
        </Button>
        {keys && isQuestion && (
          <span className="request-hint" aria-hidden>
            <Kbd>R</Kbd> decline
          </span>
        )}
      </div>
    </form>
  );
}

function Address({ url }: { readonly url: string }): ReactNode {
  const target = followable(url);
  return (
    <p className="form-address">
      <code>
        <SafeText text={url} limit={2_000} />
      </code>
      {target && (
        <a href={target} target="_blank" rel="noopener noreferrer">
          Open <ExternalLink aria-hidden size={13} />
        </a>
      )}
    </p>
  );
}

interface OneFieldProps {
  readonly field: FormField;
  readonly value: Value | undefined;
  readonly set: (value: Value) => void;
  readonly error: string | undefined;
  readonly busy: boolean;
  /** Whether numbers choose. */
  readonly keys: boolean;
}

function OneField({ field, value, set, error, busy, keys }: OneFieldProps): ReactNode {
  const label = spelledOut(field.label, "prose").slice(0, 200);
  const hint = field.description && <SafeText text={field.description} as="prose" limit={1_000} />;
  if (field.type === "boolean") {
    return (
      <label className="choice">
        <input
          type="checkbox"
          checked={value === true}
          disabled={busy}
          onChange={(event) => set(event.target.checked)}
        />
        <span className="choice-words">
          {label}
          {hint && <span className="choice-description">{hint}</span>}
        </span>
      </label>
    );
  }
  if (field.type === "many" || (field.type === "one" && field.choices.length <= MAX_SHOWN)) {
    return <Choosing field={field} label={label} value={value} set={set} error={error} busy={busy} keys={keys} />;
  }
  return (
    <Field label={field.required ? `${label} *` : label} hint={hint} error={error}>
      {(given) => {
        const common = {
          ...given,
          disabled: busy,
          required: field.required,
          value: typeof value === "string" ? value : "",
        };
        if (field.type === "one") {
          return (
            <Select {...common} onChange={(event) => set(event.target.value)}>
              <option value="">{field.required ? "Choose…" : "None"}</option>
              {field.choices.map((choice, index) => (
                <option key={index} value={choice.value}>
                  {spelledOut(choice.label, "prose").slice(0, 200)}
                </option>
              ))}
            </Select>
          );
        }
        if (field.type === "long")
          return <TextArea {...common} rows={3} onChange={(event) => set(event.target.value)} />;
        const isNumber = field.type === "number" || field.type === "integer";
        return (
          <Input
            {...common}
            type={isNumber ? "number" : field.input}
            step={field.type === "integer" ? 1 : "any"}
            min={field.minimum}
            max={field.maximum}
            onChange={(event) => set(event.target.value)}
          />
        );
      }}
    </Field>
  );
}

/** Choices that are all in view: one of them, or several. */
function Choosing({
  field,
  label,
  value,
  set,
  error,
  busy,
  keys,
}: OneFieldProps & { readonly label: string }): ReactNode {
  const name = useId();
  const several = field.type === "many";
  const chosen = Array.isArray(value) ? (value as readonly string[]) : [value as string];
  const toggle = (choice: string): void => {
    if (!several) set(choice === value && !field.required ? "" : choice);
    else set(chosen.includes(choice) ? chosen.filter((each) => each !== choice) : [...chosen, choice]);
  };
  return (
    <fieldset className="question" disabled={busy}>
      <legend className="question-text">{field.required ? `${label} *` : label}</legend>
      {field.description && (
        <p className="choice-description">
          <SafeText text={field.description} as="prose" limit={1_000} />
        </p>
      )}
      {field.choices.map((choice, index) => (
        <label key={index} className="choice">
          <input
            type={several ? "checkbox" : "radio"}
            name={name}
            checked={chosen.includes(choice.value)}
            onChange={() => toggle(choice.value)}
          />
          <span className="choice-words">
            <SafeText text={choice.label} as="prose" limit={500} />
            {choice.description && (
              <span className="choice-description">
                <SafeText text={choice.description} as="prose" limit={1_000} />
              </span>
            )}
          </span>
          {keys && index < 9 && <Kbd>{index + 1}</Kbd>}
        </label>
      ))}
      {error && <p className="request-warning">{error}</p>}
    </fieldset>
  );
}
