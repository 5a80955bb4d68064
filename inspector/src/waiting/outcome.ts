/** What became of a request, in words. */

import type { RequestDecision, RequestItem } from "sandboxagent";
import { fieldsOf } from "./form-fields.js";

/** Who settled it: `you`, a person's name, a rule, the server. */
export function whoOf(by: RequestDecision["by"], isYou: boolean): string {
  if (isYou) return "you";
  if (by === undefined) return "someone";
  switch (by.kind) {
    case "client": {
      // `name` counts the server's connections: it says something only where nothing else does.
      const [user, client, name] = [by["user"], by["client"], by["name"]].map((each) =>
        typeof each === "string" && each !== "" ? each : undefined,
      );
      if (user !== undefined && client !== undefined) return `${user} (${client})`;
      return user ?? client ?? name ?? "another client";
    }
    case "rule": {
      const name = typeof by["name"] === "string" ? ` “${by["name"]}”` : ` ${String(by["rule"] ?? "")}`;
      return `${by["source"] === "session" ? "the session's" : "the server's"} rule${name.trimEnd()}`;
    }
    case "timeout":
      return "the server, because no answer came in time";
    case "limit":
      return "the server, because its rules took too long";
    case "cancel":
      return "the end of the turn";
    case "agent":
      return "the agent, which took it back";
    default:
      return by.kind;
  }
}

/** What was chosen: an option by its name, answers, a form. */
export function choiceOf(asked: RequestItem, decision: RequestDecision): string {
  if (decision.outcome === "cancelled") return "Cancelled";
  if (asked.kind === "permission") {
    const option = asked.options.find(({ optionId }) => optionId === decision.optionId);
    if (option) return option.name;
    return decision.outcome === "rejected" ? "Rejected" : "Answered";
  }
  if (decision.outcome === "rejected") return "Declined";
  if (asked.kind === "question") return answersOf(asked, decision);
  if (decision.content) return filledIn(asked, decision.content);
  return "Accepted";
}

/** Whether something was allowed, refused, or neither. */
export function toneOf(asked: RequestItem, decision: RequestDecision): "ok" | "bad" | "neutral" {
  if (decision.outcome === "cancelled") return "neutral";
  if (decision.outcome === "rejected") return "bad";
  if (asked.kind !== "permission") return "ok";
  const kind = decision.optionKind ?? asked.options.find(({ optionId }) => optionId === decision.optionId)?.kind;
  if (kind === undefined) return "neutral";
  return kind.startsWith("allow") ? "ok" : "bad";
}

/** What was filled in, in the form's own words; of a form with one answer, that. */
function filledIn(
  { schema }: Extract<RequestItem, { kind: "elicitation" }>,
  content: Readonly<Record<string, unknown>>,
): string {
  const fields = new Map(fieldsOf(schema).map((field) => [field.name, field]));
  const entries = Object.entries(content).map(([name, value]) => {
    const field = fields.get(name);
    const labels = [value]
      .flat()
      .map((each) => field?.choices.find((choice) => choice.value === each)?.label ?? String(each));
    return { label: field?.label ?? name, words: labels.join(", ") };
  });
  const [only, ...others] = entries;
  if (only && others.length === 0) return only.words;
  return entries.map(({ label, words }) => `${label}: ${words}`).join("; ");
}

function answersOf(asked: Extract<RequestItem, { kind: "question" }>, { answers }: RequestDecision): string {
  return (answers ?? [])
    .map((given, index) =>
      given.map((id) => asked.questions[index]?.options.find((option) => option.id === id)?.label ?? id).join(", "),
    )
    .filter((each) => each !== "")
    .join("; ");
}

/** Whether a permission was not given: refused, withdrawn, or never answered. */
export function isRefused({ outcome, optionKind }: RequestDecision): boolean {
  return outcome !== "answered" || optionKind?.startsWith("reject") === true;
}
