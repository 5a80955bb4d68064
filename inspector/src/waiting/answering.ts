/** Answers of a person, and how they reach the agent: through the SDK, under the id that this client was asked by. */

import { ElicitationRequest, PermissionRequest, QuestionRequest, type SandboxAgent } from "sandboxagent";

import type { Asked } from "../log/view.js";
import type { OpenRequest, OpenRequests } from "./open-requests.js";

/** What a person can answer. */
export type Answer =
  | { readonly type: "option"; readonly optionId: string }
  | { readonly type: "answers"; readonly answers: readonly (readonly string[])[] }
  | {
      readonly type: "content";
      readonly content: Readonly<Record<string, string | number | boolean | string[]>> | undefined;
    }
  | { readonly type: "reject"; readonly reason?: string };

/** How long an answer waits for a request that this client has seen in the log but was not asked yet, in milliseconds. */
const PATIENCE = 10_000;

/** What is asked of this client under the request that the log has; undefined when it is not asked (yet). */
export function requestOf(asked: Asked, sessionId: string, open: readonly OpenRequest[]): OpenRequest | undefined {
  const candidates = open.filter((each) => each.sessionId === sessionId && isAbout(each, asked));
  // Ids differ only when this connection has used the agent's own before.
  return candidates.find(({ id }) => id === String(asked.requestId)) ?? candidates[0];
}

/** Answers a request; rejects with the SDK's error when it is settled already, or the answer does not fit. */
export async function give(client: SandboxAgent, request: OpenRequest, answer: Answer): Promise<void> {
  if (request instanceof PermissionRequest) {
    if (answer.type === "option") return await client.replyPermission(request.id, answer.optionId);
    if (answer.type === "reject") return await client.rejectPermission(request.id, answer);
  } else if (request instanceof QuestionRequest) {
    if (answer.type === "answers") return await client.replyQuestion(request.id, answer.answers);
    if (answer.type === "reject") return await client.rejectQuestion(request.id, answer);
  } else if (request instanceof ElicitationRequest) {
    if (answer.type === "content") return await client.replyElicitation(request.id, answer.content);
    if (answer.type === "reject") return await client.rejectElicitation(request.id, answer);
  }
  throw new TypeError(`an answer of the type ${answer.type} does not fit`);
}

/** Answers what the log has; waits a moment when this client has not been asked itself yet. */
export async function answerAsked(
  client: SandboxAgent,
  open: OpenRequests,
  sessionId: string,
  asked: Asked,
  answer: Answer,
): Promise<void> {
  const request = await new Promise<OpenRequest>((resolve, reject) => {
    const look = (): void => {
      const found = requestOf(asked, sessionId, open.list());
      if (found === undefined) return;
      stop();
      resolve(found);
    };
    const unsubscribe = open.subscribe(look);
    const timer = setTimeout(() => {
      stop();
      reject(new Error("the server does not ask this page for an answer; it may be settled already"));
    }, PATIENCE);
    const stop = (): void => {
      unsubscribe();
      clearTimeout(timer);
    };
    look();
  });
  await give(client, request, answer);
}

function isAbout(request: OpenRequest, asked: Asked): boolean {
  if (request instanceof PermissionRequest) {
    return (
      asked.kind === "permission" &&
      request.toolCall.toolCallId === asked.toolCall.toolCallId &&
      sameOptions(request, asked)
    );
  }
  if (request instanceof QuestionRequest) {
    if (asked.kind === "question") return asked.questionId === undefined || asked.questionId === request.id;
    return false;
  }
  return asked.kind === "elicitation" && request.message === asked.message && request.url === asked.url;
}

function sameOptions(request: PermissionRequest, asked: Extract<Asked, { kind: "permission" }>): boolean {
  return (
    request.options.length === asked.options.length &&
    request.options.every(({ optionId }, index) => optionId === asked.options[index]?.optionId)
  );
}
