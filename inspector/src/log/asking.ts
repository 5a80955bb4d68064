/** What agents ask of people, as items; and what an answer says (pure). */

import type { PermissionOption, ToolCallUpdate } from "@agentclientprotocol/sdk";

import { type Json, listAt, objectAt, textAt } from "./reading.js";
import type { Asked, AskedForm, AskedPermission, AskedQuestion, Settled } from "./view.js";

type Own<Kind> = Omit<Kind, "type" | "key" | "at" | "events" | "requestId" | "turnKey" | "decision">;

/** By method: what a request asks. */
export const ASKED: Readonly<Record<string, (params: Json) => Own<AskedPermission> | Own<AskedQuestion> | Own<AskedForm>>> = {
  "session/request_permission": (params): Own<AskedPermission> => ({
    kind: "permission",
    toolCall: objectAt(params, "toolCall") as unknown as ToolCallUpdate,
    options: listAt<PermissionOption>(params, "options") ?? [],
  }),
  "_sandboxagent/session/request_question": (params): Own<AskedQuestion> => {
    const prompt = textAt(params, "prompt") ?? "";
    const options = (listAt<[string, string]>(params, "options") ?? []).map(([id, label]) => ({ id, label }));
    return {
      kind: "question",
      prompt,
      questionId: textAt(params, "questionId"),
      toolCallId: textAt(params, "toolCallId"),
      questions: listAt(params, "questions") ?? [{ question: prompt, options, multiSelect: false }],
    };
  },
  "elicitation/create": (params): Own<AskedForm> => ({
    kind: "elicitation",
    message: textAt(params, "message") ?? "",
    mode: textAt(params, "mode") ?? "form",
    schema: params["requestedSchema"] === undefined ? undefined : objectAt(params, "requestedSchema"),
    url: textAt(params, "url"),
  }),
};

/** What an answer on its way to the agent says; who gave it follows in the server's own words. */
export function given(asked: Asked, envelope: Json): Omit<Settled, "at"> {
  const result = objectAt(envelope, "result");
  switch (asked.kind) {
    case "permission": {
      const optionId = textAt(objectAt(result, "outcome"), "optionId");
      if (optionId === undefined) return { outcome: "cancelled", by: undefined };
      const optionKind = asked.options.find((option) => option.optionId === optionId)?.kind;
      return { outcome: "answered", optionId, ...(optionKind && { optionKind }), by: undefined };
    }
    case "question": {
      const answers = listAt<readonly string[]>(result, "answers");
      return answers ? { outcome: "answered", answers, by: undefined } : { outcome: "rejected", by: undefined };
    }
    case "elicitation": {
      if (result["action"] === "accept") return { outcome: "answered", content: objectAt(result, "content"), by: undefined };
      return { outcome: result["action"] === "decline" ? "rejected" : "cancelled", by: undefined };
    }
  }
}

/** Whether a permission was not given: refused, withdrawn, or never answered. */
export function isRefused({ outcome, optionKind }: Settled): boolean {
  return outcome !== "answered" || optionKind?.startsWith("reject") === true;
}
