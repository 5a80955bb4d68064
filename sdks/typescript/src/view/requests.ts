/** Agents' requests to people, as items of a view, and what an answer says (pure). */

import type { PermissionOption, ToolCallUpdate } from "@agentclientprotocol/sdk";

import type { Question } from "../requests.js";
import { type Json, listAt, objectAt, objectsAt, textAt } from "./json.js";
import type { ElicitationItem, PermissionItem, QuestionItem, RequestDecision, RequestItem } from "./session-view.js";

/** What the params of a request say, without its place in the session. */
export type RequestFacts =
  | Facts<PermissionItem>
  | Facts<QuestionItem>
  | Facts<ElicitationItem>;

type Place = "type" | "key" | "at" | "events" | "requestId" | "agentRequestId" | "turnKey" | "decision";
type Facts<Kind> = Omit<Kind, Place>;

/** What a request of an agent asks of a person; undefined for a method that asks people nothing. */
export function requestFacts(method: string, params: Readonly<Record<string, unknown>>): RequestFacts | undefined {
  switch (method) {
    case "session/request_permission":
      return {
        kind: "permission",
        toolCall: objectAt(params, "toolCall") as unknown as ToolCallUpdate,
        options: objectsAt<PermissionOption>(params, "options") ?? [],
      };
    case "_sandboxagent/session/request_question":
      return questionFacts(params);
    case "elicitation/create":
      return {
        kind: "elicitation",
        message: textAt(params, "message") ?? "",
        mode: textAt(params, "mode") ?? "form",
        schema: params["requestedSchema"] === undefined ? undefined : objectAt(params, "requestedSchema"),
        url: textAt(params, "url"),
      };
    default:
      return undefined;
  }
}

function questionFacts(params: Json): Facts<QuestionItem> {
  return {
    kind: "question",
    prompt: textAt(params, "prompt") ?? "",
    questionId: textAt(params, "questionId"),
    toolCallId: textAt(params, "toolCallId"),
    questions: questionsOf(params),
  };
}

/** The questions of a request: several, or in the short form one prompt with options as pairs. */
export function questionsOf(params: Json): readonly Question[] {
  const questions = objectsAt(params, "questions");
  if (questions) return questions.map(questionOf);
  const options = (listAt(params, "options") ?? []).flatMap((pair) => {
    const [id, label]: readonly unknown[] = Array.isArray(pair) ? pair : [];
    return typeof id === "string" && typeof label === "string" ? [{ id, label }] : [];
  });
  return [{ question: textAt(params, "prompt") ?? "", options, multiSelect: false }];
}

function questionOf(written: Json): Question {
  const header = textAt(written, "header");
  return {
    ...(header !== undefined && { header }),
    question: textAt(written, "question") ?? "",
    options: objectsAt<Question["options"][number]>(written, "options") ?? [],
    multiSelect: written["multiSelect"] === true,
  };
}

/** What an answer on its way to the agent says. The server's decision says later who gave it. */
export function answerOf(request: RequestItem, envelope: Json): Omit<RequestDecision, "at"> {
  const result = objectAt(envelope, "result");
  switch (request.kind) {
    case "permission": {
      const optionId = textAt(objectAt(result, "outcome"), "optionId");
      if (optionId === undefined) return { outcome: "cancelled" };
      const option = request.options.find((each) => each.optionId === optionId);
      const optionKind = option && textAt(option as unknown as Json, "kind");
      return { outcome: "answered", optionId, ...(optionKind !== undefined && { optionKind }) };
    }
    case "question": {
      const answers = listAt<readonly string[]>(result, "answers");
      return answers ? { outcome: "answered", answers } : { outcome: "rejected" };
    }
    case "elicitation": {
      if (result["action"] === "accept") return { outcome: "answered", content: objectAt(result, "content") };
      return { outcome: result["action"] === "decline" ? "rejected" : "cancelled" };
    }
  }
}

/** What the server says of a decision. */
export function decisionOf(params: Json): Omit<RequestDecision, "at"> {
  const [optionId, optionKind, reason] = ["optionId", "optionKind", "reason"].map((name) => textAt(params, name));
  const answers = listAt<readonly string[]>(params, "answers");
  const by = objectAt(params, "by");
  const kind = textAt(by, "kind");
  return {
    outcome: textAt(params, "outcome") ?? "unknown",
    ...(optionId !== undefined && { optionId }),
    ...(optionKind !== undefined && { optionKind }),
    ...(answers && { answers }),
    ...(params["content"] !== undefined && { content: objectAt(params, "content") }),
    ...(reason !== undefined && { reason }),
    ...(kind !== undefined && { by: { ...by, kind } }),
  };
}
