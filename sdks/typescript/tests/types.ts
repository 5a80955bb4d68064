/** What the types promise. Compiled, never run: a line that is wrong, or wrongly expected to be, does not compile. */

import {
  type Agent,
  type AgentRequest,
  type ContentBlock,
  EMPTY_VIEW,
  type Following,
  type Gap,
  type Iteration,
  type LogEvent,
  type PermissionRequest,
  type PromptResponse,
  type QuestionAnswer,
  SandboxAgent,
  type Session,
  type SessionEvent,
  type SessionItem,
  type SessionView,
  type StopReason,
  type Turn,
  type TurnItem,
  type TurnResult,
} from "sandboxagent";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
declare function same<A, B>(equal: Equal<A, B>): void;
declare const client: SandboxAgent;
declare const session: Session;
declare const turn: Turn;
declare const permission: PermissionRequest;

// Clients

same<Awaited<ReturnType<typeof SandboxAgent.connect>>, SandboxAgent>(true);
void SandboxAgent.connect("http://127.0.0.1:2468", { token: "t", onPermission: (request) => request.allow() });
void SandboxAgent.start({
  agent: "mock",
  dataDir: "/tmp",
  options: { fsRoot: ["/srv"], noPersist: true, heartbeat: "1s" },
  env: { A: "b" },
});
// @ts-expect-error an address is needed
void SandboxAgent.connect();
// @ts-expect-error a token is a text
void SandboxAgent.connect("http://127.0.0.1", { token: 7 });
// @ts-expect-error connect() starts nothing
void SandboxAgent.connect("http://127.0.0.1", { dataDir: "/tmp" });
// @ts-expect-error it is made by connect() or start()
void new SandboxAgent();
// @ts-expect-error it stays where it is
client.url = "http://elsewhere";

// Handlers

client.onPermission((request) => request.reject());
client.onPermission(async (request) => (request.options.length > 1 ? request.allow() : undefined));
client.onPermission(() => {});
client.onQuestion((request) => request.answer("red", ["s", "m"]));
client.onElicitation((request) => request.accept({ amount: 3, gift: true, tags: ["a"] }));
// @ts-expect-error a permission is not answered with a word
client.onPermission(() => "yes");
// @ts-expect-error a question is not answered like a permission
client.onQuestion(() => permission.allow());
// @ts-expect-error an answer is one text or several
client.onQuestion((request) => request.answer(7));
// @ts-expect-error a form has no objects
client.onElicitation((request) => request.accept({ deep: { er: 1 } }));
same<ReturnType<PermissionRequest["allow"]>["outcome"]["outcome"], "selected" | "cancelled">(true);
same<Extract<QuestionAnswer, { status: "rejected" }>["status"], "rejected">(true);
client.onQuestion((request) => request.reject({ reason: "None of these." }));
// @ts-expect-error a reason is a text
client.onPermission((request) => request.reject({ reason: 7 }));

// Sessions and turns

void client.sessions.create("mock", { cwd: "/srv", metadata: { any: ["thing"] } });
void client.sessions.create({ cwd: "/srv" });
// @ts-expect-error there is no such option
void client.sessions.create("mock", { directory: "/srv" });
same<ReturnType<Session["prompt"]>, Turn>(true);
same<Awaited<Turn>, TurnResult>(true);
same<Awaited<Turn>["stopReason"], StopReason>(true);
session.prompt("text", { attachments: ["a.txt", { path: "b", mime: "text/csv" }], meta: { any: 1 } });
session.prompt([{ type: "text", text: "a" }] satisfies ContentBlock[]);
session.prompt({ type: "text", text: "a" });
// @ts-expect-error an attachment has a path
session.prompt("text", { attachments: [{ mime: "text/csv" }] });
// @ts-expect-error a block has a type that ACP knows
session.prompt([{ type: "smell", smell: "roses" }]);
same<ReturnType<Session["updates"]>, Iteration<SessionItem>>(true);
const asPromise: PromiseLike<PromptResponse> = turn;
const asLoop: AsyncIterable<TurnItem> = turn;
const history: AsyncIterable<SessionEvent> = session.history({ after: 3, before: 9 });
const log: AsyncIterable<LogEvent | Gap> = session.log({ after: 3, before: 9 });
const following: Following = session.follow({ view: EMPTY_VIEW });
same<typeof following.view, SessionView>(true);
same<Awaited<ReturnType<Session["pending"]>>, AgentRequest[]>(true);

/** Items are told apart by `sessionUpdate`. */
export function told(item: SessionItem): string {
  switch (item.sessionUpdate) {
    case "agent_message_chunk":
      return item.content.type === "text" ? item.content.text : item.content.type;
    case "tool_call":
      return item.title;
    case "turn_started":
      return item.turnId;
    case "turn_ended":
      return item.stopReason ?? item.error?.message ?? "";
    case "decision":
      return item.by.kind;
    case "metadata_update":
      return Object.keys(item.metadata).join();
    case "session_ended":
      return item.reason;
    case "prompt":
      return item.turnId;
    case "request":
      return item.request.kind === "permission" ? item.request.toolCall.toolCallId : item.request.id;
    case "session_opened":
      return item.cwd ?? "";
    case "gap":
      return String(item.resumesAt - item.after);
    // @ts-expect-error nothing is called so
    case "nonsense":
      return "";
    default:
      return "";
  }
}

// The protocol itself

void client
  .request("session/prompt", { sessionId: "s", prompt: [] })
  .then(({ stopReason }) => same<typeof stopReason, StopReason>(true));
void client.request<{ any: number }>("x/any", { deep: [1] }).then(({ any }) => same<typeof any, number>(true));
void client.notify("session/cancel", { sessionId: "s" });
const stop: () => void = client.tap((direction, envelope, position) => {
  same<typeof direction, "sent" | "received">(true);
  same<typeof position, number | undefined>(true);
  void envelope;
});

// Agents and files

void client.agents.get("mock").then((agent) => same<typeof agent, Agent>(true));
void client.files.write("a", new Uint8Array(), { ifNoneMatch: "*" });
// @ts-expect-error a file is no number
void client.files.write("a", 7);
// @ts-expect-error there are three ways to look at letters
void client.files.search(".", { text: "a", case: "loud" });

export { asLoop, asPromise, history, log, stop };
