/** Turns the events of a session's log into typed items. */

import type { ContentBlock } from "@agentclientprotocol/sdk";

import { KINDS, isAskingMethod } from "./asking.js";
import type { Logger } from "./log.js";
import type { LogEvent } from "./past.js";
import type { AgentRequest } from "./requests.js";
import { type Gap, type SessionEvent, type SessionItem, UPDATE, itemOf } from "./updates.js";
import { BEGINNINGS } from "./view/reducer.js";
import { type Json, isObject, objectAt, objectsAt, ours, textAt } from "./view/json.js";
import { attachmentsOf } from "./view/settings.js";

/** The item of an event of the log; undefined for an event without one, such as an answer to `fs/read_text_file`. */
export function sessionEvent(event: LogEvent | Gap, log: Logger): SessionEvent | undefined {
  if (!("envelope" in event)) return { position: event.resumesAt - 1, item: event };
  const item = itemIn(event, event.envelope as unknown as Json, log);
  return item && { position: event.id, at: event.at, item };
}

function itemIn(event: LogEvent, envelope: Json, log: Logger): SessionItem | undefined {
  const method = textAt(envelope, "method");
  if (method === undefined) return undefined;
  const params = objectAt(envelope, "params");
  const isRequest = envelope["id"] !== undefined;
  switch (event.direction) {
    case "fromClient":
      return isRequest ? sentItem(event, method, params) : undefined;
    case "fromAgent":
      if (isRequest) return requestItem(event, method, params, log);
      return method === UPDATE ? updateItem(params) : undefined;
    case "fromServer":
      if (isRequest) return undefined;
      return method === UPDATE ? updateItem(params) : itemOf({ method, params });
  }
}

function sentItem({ id }: LogEvent, method: string, params: Json): SessionItem | undefined {
  if (method === "session/prompt") {
    const promptId = textAt(ours(params), "promptId");
    return {
      sessionUpdate: "prompt",
      turnId: `turn-${id}`,
      ...(promptId !== undefined && { promptId }),
      prompt: objectsAt<ContentBlock>(params, "prompt") ?? [],
      attachments: attachmentsOf(ours(params)),
    };
  }
  if (!BEGINNINGS.has(method)) return undefined;
  const [agent, title, cwd] = [textAt(ours(params), "agent"), textAt(ours(params), "title"), textAt(params, "cwd")];
  return {
    sessionUpdate: "session_opened",
    ...(agent !== undefined && { agent }),
    ...(cwd !== undefined && { cwd }),
    ...(title !== undefined && { title }),
  };
}

function requestItem(event: LogEvent, method: string, params: Json, log: Logger): SessionItem | undefined {
  const request = requestOf(method, event.requestId ?? "", params, event.at, log);
  return request && { sessionUpdate: "request", request };
}

/** A request of an agent that was read, and not brought by the stream; undefined for one that people do not answer. */
export function requestOf(
  method: string,
  id: string,
  params: Json,
  askedAt: string,
  log: Logger,
): AgentRequest | undefined {
  if (!isAskingMethod(method)) return undefined;
  return new KINDS[method](id, params, new AbortController().signal, log, askedAt);
}

function updateItem(params: Json): SessionItem | undefined {
  const update = params["update"];
  return isObject(update) && textAt(update, "sessionUpdate") ? (update as unknown as SessionItem) : undefined;
}
