/** Asks a person what an agent asks: a permission, questions, a form. */

import { type FormEvent, type ReactNode, useId, useState } from "react";
import {
  type AgentRequest,
  AlreadyAnswered,
  type ElicitationRequest,
  type PermissionRequest,
  type QuestionRequest,
  type SandboxAgent,
} from "sandboxagent";

import { useSandboxAgent } from "./client-context.js";
import { type Field, fieldsOf, filledIn } from "./form-fields.js";
import { ToolContent } from "./messages.js";
import { textFor, visible } from "./visible.js";

/** What every card needs. */
export interface CardProps<Request> {
  /** The request, as `usePendingRequests` gives it. */
  readonly request: Request;
  /** In place of the provider's client. */
  readonly client?: SandboxAgent;
  /** Called when the answer was taken. */
  readonly onAnswered?: () => void;
  /** A class of your own. */
  readonly className?: string;
}

/** A request of any kind. It has `data-kind`, and `data-state`: `open`, `sending` or `refused`. */
export function RequestCard({ request, ...rest }: CardProps<AgentRequest>): ReactNode {
  switch (request.kind) {
    case "permission":
      return <PermissionCard request={request} {...rest} />;
    case "question":
      return <QuestionCard request={request} {...rest} />;
    case "elicitation":
      return <ElicitationCard request={request} {...rest} />;
  }
}

/** A permission: what is to be allowed, and a button for each of the agent's options. */
export function PermissionCard(props: CardProps<PermissionRequest>): ReactNode {
  const { request } = props;
  const { send, ...sending } = useAnswer(props);
  const { toolCall, options } = request;
  const place = { sessionId: request.sessionId };
  return (
    <Card {...props} {...sending} title={`Allow: ${toolCall.title ?? toolCall.kind ?? "an action"}?`}>
      <ToolContent content={toolCall.content ?? []} terminals={{}} />
      {(toolCall.locations ?? [])
        .filter(({ path }) => !toolCall.content?.some((part) => part.type === "diff" && part.path === path))
        .map(({ path }) => (
          <code key={path} className="sa-location">
            {visible(path)}
          </code>
        ))}
      {toolCall.rawInput !== undefined && (
        <details open={!(toolCall.content?.length ?? 0)}>
          <summary>Arguments</summary>
          <pre tabIndex={0}>{textFor(commandOf(toolCall.rawInput) ?? toolCall.rawInput)}</pre>
        </details>
      )}
      <div role="group" aria-label="Answer" className="sa-answers">
        {options.map(({ optionId, name, kind }) => (
          <button
            key={optionId}
            type="button"
            data-option={optionId}
            data-option-kind={kind}
            disabled={sending.state === "sending"}
            onClick={() => send((client) => client.replyPermission(request.id, optionId, place))}
          >
            {visible(name)}
          </button>
        ))}
      </div>
    </Card>
  );
}

/** Questions: choices or a text for each. */
export function QuestionCard(props: CardProps<QuestionRequest>): ReactNode {
  const { request } = props;
  const { send, ...sending } = useAnswer(props);
  const place = { sessionId: request.sessionId };
  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const answers = request.questions.map((_, index) => {
      const own = String(form.get(`text-${index}`) ?? "").trim();
      const chosen = form.getAll(`choice-${index}`).map(String);
      return own === "" ? chosen : request.questions[index]?.multiSelect ? [...chosen, own] : [own];
    });
    send((client) => client.replyQuestion(request.id, answers, place));
  };
  const fields = request.questions.map(({ header, question, options, multiSelect }, index) => (
    <fieldset key={index} disabled={sending.state === "sending"}>
      <legend>{visible(header ? `${header}: ${question}` : question)}</legend>
      {options.map(({ id, label, description }) => (
        <label key={id}>
          <input type={multiSelect ? "checkbox" : "radio"} name={`choice-${index}`} value={id} /> {visible(label)}
          {description && <small> {visible(description)}</small>}
        </label>
      ))}
      <label>
        {options.length > 0 ? "Or in your own words" : "Your answer"}{" "}
        <input name={`text-${index}`} autoComplete="off" />
      </label>
    </fieldset>
  ));
  return (
    <Card {...props} {...sending} title={request.prompt || "A question"}>
      <form onSubmit={submit}>
        {fields}
        <FormButtons
          sending={sending}
          answer="Answer"
          onDecline={() => send((client) => client.rejectQuestion(request.id, place))}
        />
      </form>
    </Card>
  );
}

/** A form, or an address to visit. */
export function ElicitationCard(props: CardProps<ElicitationRequest>): ReactNode {
  const { request } = props;
  const { send, ...sending } = useAnswer(props);
  const place = request.sessionId === undefined ? {} : { sessionId: request.sessionId };
  const fields = request.mode === "form" ? fieldsOf(request.schema) : [];
  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const content = request.mode === "form" ? filledIn(fields, new FormData(event.currentTarget)) : undefined;
    send((client) => client.replyElicitation(request.id, content, place));
  };
  const isLink = request.url !== undefined && /^https?:/.test(request.url);
  return (
    <Card {...props} {...sending} title={request.message || "A form"}>
      <form onSubmit={submit}>
        {request.url !== undefined &&
          (isLink ? (
            <a href={request.url} target="_blank" rel="noreferrer noopener">
              {visible(request.url)}
            </a>
          ) : (
            <code>{visible(request.url)}</code>
          ))}
        <fieldset disabled={sending.state === "sending"}>
          {fields.map((field) => (
            <FormField key={field.name} field={field} />
          ))}
        </fieldset>
        <FormButtons
          sending={sending}
          answer={request.mode === "form" ? "Send" : "Done"}
          onDecline={() => send((client) => client.rejectElicitation(request.id, place))}
        />
      </form>
    </Card>
  );
}

interface Sending {
  readonly state: "open" | "sending" | "refused";
  readonly error: string | undefined;
}

type Send = (give: (client: SandboxAgent) => Promise<void>) => void;

/** Sends an answer, once; a refused one says why. */
function useAnswer({ client: given, onAnswered }: CardProps<unknown>): Sending & { readonly send: Send } {
  const client = useSandboxAgent(given);
  const [sending, setSending] = useState<Sending>({ state: "open", error: undefined });
  const send: Send = (give) => {
    setSending({ state: "sending", error: undefined });
    give(client).then(
      () => onAnswered?.(),
      (error: unknown) => {
        const isLate = error instanceof AlreadyAnswered;
        const text = isLate ? `Your answer came too late: ${error.detail}` : String((error as Error).message);
        setSending({ state: "refused", error: text });
      },
    );
  };
  return { ...sending, send };
}

interface FrameProps extends CardProps<AgentRequest>, Sending {
  readonly title: string;
  readonly children: ReactNode;
}

function Card({ request, title, state, error, className = "", children }: FrameProps): ReactNode {
  const id = useId();
  return (
    <section
      className={`sa-request ${className}`}
      aria-labelledby={id}
      data-kind={request.kind}
      data-state={state}
      data-request={request.id}
    >
      <h2 id={id}>{visible(title)}</h2>
      {children}
      {error !== undefined && <p role="alert">{visible(error)}</p>}
    </section>
  );
}

interface FormButtonsProps {
  readonly sending: Sending;
  readonly answer: string;
  readonly onDecline: () => void;
}

function FormButtons({ sending, answer, onDecline }: FormButtonsProps): ReactNode {
  return (
    <div className="sa-answers">
      <button type="submit" disabled={sending.state === "sending"}>
        {answer}
      </button>
      <button type="button" disabled={sending.state === "sending"} onClick={onDecline}>
        Decline
      </button>
    </div>
  );
}

function FormField({ field }: { readonly field: Field }): ReactNode {
  const { name, title, description, required, initial, choices } = field;
  const label = (
    <>
      {visible(title)}
      {required && <span aria-hidden> *</span>}
      {description && <small> {visible(description)}</small>}
    </>
  );
  if (field.type === "boolean") {
    return (
      <label>
        <input type="checkbox" name={name} defaultChecked={initial === "true"} /> {label}
      </label>
    );
  }
  if (choices) {
    const several = field.type === "array";
    return (
      <label>
        {label}{" "}
        <select name={name} required={required} multiple={several} defaultValue={several ? [] : (initial ?? "")}>
          {!several && <option value="">–</option>}
          {choices.map(({ value, label: text }) => (
            <option key={value} value={value}>
              {visible(text)}
            </option>
          ))}
        </select>
      </label>
    );
  }
  const isNumber = field.type === "number" || field.type === "integer";
  return (
    <label>
      {label}{" "}
      <input
        name={name}
        type={isNumber ? "number" : "text"}
        step={field.type === "number" ? "any" : undefined}
        required={required}
        defaultValue={initial}
        autoComplete="off"
      />
    </label>
  );
}

/** The command of a permission to run one, as most agents name it. */
function commandOf(rawInput: unknown): string | undefined {
  const command = (rawInput as { readonly command?: unknown } | null)?.command;
  const only = typeof rawInput === "object" && rawInput !== null && Object.keys(rawInput).length === 1;
  return only && typeof command === "string" ? command : undefined;
}
