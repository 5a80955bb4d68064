/** What waits in a session: what the log says, together with what this client is really asked. */

import {
  ElicitationRequest,
  EventIds,
  PermissionRequest,
  type QuestionRequest,
  type RequestItem,
  type SessionView,
} from "sandboxagent";

import { requestOf } from "./answering.js";
import type { OpenRequest } from "./open-requests.js";

export interface Pending {
  readonly asked: RequestItem;
  /** Undefined until the server asks this client, too. */
  readonly request: OpenRequest | undefined;
}

/**
 * The open requests of a session, oldest first.
 *
 * Some agents ask in ways of their own, which the log has as they were and the server makes questions of. What is asked
 * of this client is then what counts. Nothing else takes the place of a card: a person may be about to answer it.
 */
export function pendingOf(view: SessionView, sessionId: string, open: readonly OpenRequest[]): Pending[] {
  const here = open.filter((each) => each.sessionId === sessionId);
  const taken = new Set<OpenRequest>();
  const found = view.pending.map((asked) => {
    const request = requestOf(
      asked,
      sessionId,
      here.filter((each) => !taken.has(each)),
    );
    if (request) taken.add(request);
    return { asked, request };
  });
  const strangers = here.filter((each) => !taken.has(each));
  const paired = found.map((each) => {
    if (each.request) return each;
    const at = strangers.findIndex((request) => isMadeOf(request, each.asked));
    const [request] = at < 0 ? [] : strangers.splice(at, 1);
    return request ? { asked: askedOf(request, each.asked.key), request } : each;
  });
  return [...paired, ...strangers.map((request) => ({ asked: askedOf(request, keyOf(request)), request }))];
}

/** What a request is called until the log has it. */
function keyOf(request: OpenRequest): string {
  return `request-${request.id}`;
}

/** Whether only this client knows of it yet: its request may come before the log's event does. */
export function isAhead({ asked, request }: Pending): boolean {
  return request !== undefined && asked.key === keyOf(request);
}

/**
 * The names of the cards, by the keys of what they show. A card keeps its name when the log, or this client's request,
 * comes after it: another card in its place would lose the focus, a click, and the reason that is being written.
 */
export function cardsOf(pending: readonly Pending[], before: ReadonlyMap<string, string>): ReadonlyMap<string, string> {
  return new Map(
    pending.flatMap(({ asked, request }) => {
      const keys = request ? [asked.key, keyOf(request)] : [asked.key];
      const card = keys.map((key) => before.get(key)).find((name) => name !== undefined) ?? asked.key;
      return keys.map((key) => [key, card] as const);
    }),
  );
}

/** Whether the server may have made this request of what the log has: a question or a form of something else. */
function isMadeOf(request: OpenRequest, asked: RequestItem): boolean {
  if (request instanceof PermissionRequest) return false;
  return asked.kind !== (request instanceof ElicitationRequest ? "elicitation" : "question");
}

/** A request to this client as an item of a view. */
export function askedOf(request: OpenRequest, key: string): RequestItem {
  const common = {
    type: "request",
    key,
    events: EventIds.of(),
    at: request.askedAt ?? "",
    requestId: request.id,
    agentRequestId: request.id,
    turnKey: "",
    decision: undefined,
  } as const;
  if (request instanceof PermissionRequest) {
    return { ...common, kind: "permission", toolCall: request.toolCall, options: request.options };
  }
  if (request instanceof ElicitationRequest) {
    const { message, mode, schema, url } = request;
    return { ...common, kind: "elicitation", message, mode, schema, url };
  }
  const { questionId, prompt, questions } = request as QuestionRequest;
  return { ...common, kind: "question", questionId, prompt, questions, toolCallId: undefined };
}
