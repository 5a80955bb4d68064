/** Answers of a person, and how they reach the agent: through the SDK, under the id that this client was asked by. */

import {
  ElicitationRequest,
  PermissionRequest,
  QuestionRequest,
  type RequestItem,
  type SandboxAgent,
  requestFacts,
} from "sandboxagent";

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
const TIMEOUT = 10_000;

/** The request that a person answered does not wait any more; the answer went nowhere. */
export class SettledAlready extends Error {
  override readonly name = "SettledAlready";

  constructor() {
    super("This request is settled already. Your answer was not sent.");
  }
}

/**
 * What is asked of this client under the request that the log has; undefined when it is not asked (yet).
 *
 * All that a person was shown must be the same: the log has the agent's own id, which no client knows and which another
 * request may have, too.
 */
export function requestOf(asked: RequestItem, sessionId: string, open: readonly OpenRequest[]): OpenRequest | undefined {
  const candidates = open.filter((each) => each.sessionId === sessionId && asksTheSame(each, asked));
  return candidates.find(({ id }) => id === asked.requestId) ?? candidates[0];
}

/** Answers a request; rejects when it is settled already, or the answer does not fit. */
export async function give(client: SandboxAgent, request: OpenRequest, answer: Answer): Promise<void> {
  if (request.signal.aborted) throw new SettledAlready();
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
  asked: RequestItem,
  answer: Answer,
): Promise<void> {
  await give(client, await requestFor(open, sessionId, asked), answer);
}

/** What is asked of this client under the request that the log has, now or in a moment; else rejects as settled. */
export async function requestFor(open: OpenRequests, sessionId: string, asked: RequestItem): Promise<OpenRequest> {
  return await new Promise<OpenRequest>((resolve, reject) => {
    const look = (): void => {
      const found = requestOf(asked, sessionId, open.list());
      if (found === undefined) return;
      stop();
      resolve(found);
    };
    const unsubscribe = open.subscribe(look);
    const timer = setTimeout(() => {
      stop();
      reject(new SettledAlready());
    }, TIMEOUT);
    const stop = (): void => {
      unsubscribe();
      clearTimeout(timer);
    };
    look();
  });
}

function asksTheSame(request: OpenRequest, asked: RequestItem): boolean {
  if (request instanceof PermissionRequest) {
    if (asked.kind !== "permission") return false;
    return isSame(request.toolCall, asked.toolCall) && isSame(request.options, asked.options);
  }
  if (request instanceof QuestionRequest) {
    if (asked.kind !== "question" || (asked.questionId ?? request.questionId) !== request.questionId) return false;
    return request.prompt === asked.prompt && isSame(request.questions, asked.questions);
  }
  if (asked.kind !== "elicitation") return false;
  const { message, mode, schema, url } = request;
  // Read as the log is: an agent may write null for what it leaves out.
  const form = requestFacts("elicitation/create", { message, mode, requestedSchema: schema, url });
  return isSame(form, { kind: asked.kind, message: asked.message, mode: asked.mode, schema: asked.schema, url: asked.url });
}

/** Whether two values are the same JSON; the order of names does not count. */
function isSame(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const [mine, others] = [Object.entries(one), new Map<string, unknown>(Object.entries(other))];
  return mine.length === others.size && mine.every(([name, value]) => others.has(name) && isSame(value, others.get(name)));
}
