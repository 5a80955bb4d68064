/** Calls of OpenCode's SDK (the export `/v2`) that the bridge answers, and the events of a turn. */

import assert from "node:assert/strict";
import { suite, test } from "node:test";

import {
  createOpencodeClient,
  type Event,
  type EventMessagePartDelta,
  type EventPermissionAsked,
  type EventQuestionAsked,
  type Part,
} from "@opencode-ai/sdk/v2";

import { Events, LONGEST, can, given, model, ok, options, refused, textOf } from "./support.ts";

const client = createOpencodeClient(options);

async function opened(): Promise<{ sessionID: string }> {
  const session = ok(
    await client.session.create({ model: { providerID: model.providerID, id: model.modelID } }),
  );
  return { sessionID: session.id };
}

function said(text: string): { model: typeof model; parts: [{ type: "text"; text: string }] } {
  return { model, parts: [{ type: "text", text }] };
}

async function listening(): Promise<Events<Event>> {
  return await Events.open<Event>(client.event.subscribe());
}

function idle(sessionID: string): (event: Event) => boolean {
  return (event) => event.type === "session.idle" && event.properties.sessionID === sessionID;
}

interface Asked {
  "permission.asked": EventPermissionAsked["properties"];
  "question.asked": EventQuestionAsked["properties"];
}

/** A prompt in a session of its own, and what the agent asks then. */
async function asked<K extends keyof Asked>(kind: K, prompt: string) {
  const { sessionID } = await opened();
  const events = await listening();
  const answer = client.session.prompt({ sessionID, ...said(prompt) });
  const request = await events.until(
    (event) => event.type === kind && (event.properties as Asked[K]).sessionID === sessionID,
  );
  await events.close();
  return { sessionID, answer, request: request.properties as Asked[K] };
}

/** The events of one session, without those that say nothing of its turn. */
function ofTurn(events: Event[], sessionID: string): Event[] {
  const beside = ["session.created", "session.updated", "session.diff", "todo.updated"];
  return events.filter((event) => JSON.stringify(event).includes(sessionID) && !beside.includes(event.type));
}

suite("what there is", { timeout: LONGEST, concurrency: true }, () => {
  test("the server is well", async () => {
    const health = ok(await client.global.health());
    assert.equal(health.healthy, true);
    assert.match(health.version, /^\d+\.\d+\.\d+/);
  });

  test("what clients look at when they start", async () => {
    assert.equal(typeof ok(await client.global.config.get()), "object");
    assert.ok(Array.isArray(ok(await client.app.skills())));
    assert.equal(typeof ok(await client.experimental.capabilities.get()), "object");
    assert.equal(typeof ok(await client.experimental.console.get()), "object");
    assert.equal(typeof ok(await client.experimental.resource.list()), "object");
    assert.ok(Array.isArray(ok(await client.experimental.workspace.list())));
    const project = ok(await client.project.current());
    assert.ok(Array.isArray(ok(await client.project.directories({ projectID: project.id }))));
    assert.ok(Array.isArray(ok(await client.vcs.status())));
    assert.ok(Array.isArray(ok(await client.vcs.diff({ mode: "git" }))));
  });

  test("nothing waits for an answer", async () => {
    assert.ok(Array.isArray(ok(await client.permission.list())));
    assert.ok(Array.isArray(ok(await client.question.list())));
  });
});

suite("turns", { timeout: LONGEST, concurrency: true }, () => {
  test("its events come in the order that clients need", async () => {
    const { sessionID } = await opened();
    const events = await listening();
    ok(await client.session.prompt({ sessionID, ...said(can.thought.prompt) }));
    await events.until(idle(sessionID));
    await events.close();
    const turn = ofTurn(events.seen, sessionID);

    const user = turn.findIndex((event) => event.type === "message.updated" && event.properties.info.role === "user");
    const busy = turn.findIndex((event) => event.type === "session.status" && event.properties.status.type === "busy");
    const begun = turn.findIndex(
      (event) => event.type === "message.updated" && event.properties.info.role === "assistant",
    );
    const rest = turn.findIndex((event) => event.type === "session.status" && event.properties.status.type === "idle");
    assert.ok(user === 0 && user < begun && busy < begun && begun < rest, turn.map((event) => event.type).join());
    assert.equal(turn.filter((event) => event.type === "session.idle").length, 1);

    // Every part comes before its deltas, and the deltas make up what it is at its end.
    const texts = new Map<string, string>();
    const ends = new Map<string, Part>();
    for (const event of turn) {
      if (event.type === "message.part.updated") {
        const { part } = event.properties;
        if (part.type !== "text" && part.type !== "reasoning") continue;
        if (!texts.has(part.id)) texts.set(part.id, part.text);
        if (part.time?.end !== undefined) {
          assert.equal(part.text.trimEnd(), texts.get(part.id)?.trimEnd());
          ends.set(part.id, part);
        }
      } else if (event.type === "message.part.delta") {
        const { partID, field, delta } = (event as EventMessagePartDelta).properties;
        assert.equal(field, "text");
        assert.ok(texts.has(partID), "a delta of a part that never came");
        texts.set(partID, texts.get(partID) + delta);
      }
    }
    const kinds = [...ends.values()].map((part) => part.type);
    assert.deepEqual(kinds.slice(0, 2), ["reasoning", "text"]);
    const deltas = turn.filter((event) => event.type === "message.part.delta");
    assert.ok(deltas.length > 2, "text is streamed");
  });

  test("the same events come on both streams", { skip: !given.bridge }, async () => {
    const events = await listening();
    const everywhere = await Events.open<Event>(client.global.event() as never, "globalEvent");
    const { sessionID } = await opened();
    ok(await client.session.prompt({ sessionID, ...said(can.hello.prompt) }));
    await Promise.all([events.until(idle(sessionID)), everywhere.until(idle(sessionID))]);
    await Promise.all([events.close(), everywhere.close()]);
    const ids = (seen: Event[]): string[] =>
      ofTurn(seen, sessionID)
        .filter((event) => (event.type as string) !== "sync")
        .map((event) => event.id);
    assert.deepEqual(ids(events.seen), ids(everywhere.seen));
    assert.deepEqual(ids(events.seen), ids(events.seen).toSorted());
  });

  test("ids that the client makes are taken", async () => {
    const { sessionID } = await opened();
    // As the web page makes them, whose clock is not the server's.
    const time = (BigInt(Date.now() + 60_000) * 4096n).toString(16).slice(-12);
    const messageID = `msg_${time}00000000000001`;
    const parts = [{ id: `prt_${time}00000000000001`, type: "text" as const, text: can.hello.prompt }];
    const { info } = ok(await client.session.prompt({ sessionID, messageID, model, parts }));
    assert.equal(info.parentID, messageID);
    const [user, assistant] = ok(await client.session.messages({ sessionID }));
    assert.equal(user?.info.id, messageID);
    assert.equal(user?.parts[0]?.id, parts[0]?.id);
    assert.ok(assistant && (!given.bridge || assistant.info.id > messageID), "a reply sorts after its prompt");
  });

  test("a prompt that comes while it is busy is played after that", { skip: !given.bridge }, async () => {
    const { sessionID } = await opened();
    const events = await listening();
    const first = client.session.prompt({ sessionID, ...said(can.thought.prompt) });
    await events.until((event) => event.type === "message.part.delta" && event.properties.sessionID === sessionID);
    await events.close();
    const second = ok(await client.session.prompt({ sessionID, ...said(can.hello.prompt) }));
    assert.match(textOf(second), new RegExp(can.hello.shows));
    assert.match(textOf(ok(await first)), new RegExp(can.thought.says));
    const messages = ok(await client.session.messages({ sessionID }));
    assert.deepEqual(
      messages.map(({ info }) => info.role),
      ["user", "assistant", "user", "assistant"],
    );
    assert.equal(messages[3]?.info.id, second.info.id);
  });

  test("a message that wants no reply is refused: an agent answers every prompt", { skip: !given.bridge }, async () => {
    const { sessionID } = await opened();
    const [status] = refused(await client.session.prompt({ sessionID, noReply: true, ...said("remember this") }));
    assert.equal(status, 400);
    assert.deepEqual(ok(await client.session.messages({ sessionID })), []);
  });

  test("a file is attached", async () => {
    const { sessionID } = await opened();
    const url = `data:text/plain;base64,${btoa("violets are blue")}`;
    const file = { type: "file" as const, mime: "text/plain", filename: "violets.txt", url };
    const parts = [{ type: "text" as const, text: can.hello.prompt }, file];
    ok(await client.session.prompt({ sessionID, model, parts }));
    const [user, answer] = ok(await client.session.messages({ sessionID }));
    const attached = user?.parts.find((part) => part.type === "file");
    assert.ok(attached?.type === "file");
    assert.equal(attached.filename, "violets.txt");
    // The mock agent names what it got.
    assert.ok(!given.bridge || (answer && textOf(answer).includes("violets.txt")), JSON.stringify(answer));
  });
});

suite("permissions and questions", { timeout: LONGEST, concurrency: true }, () => {
  test("a tool runs, asks, and ends as one part", async () => {
    const { sessionID } = await opened();
    const events = await listening();
    const prompt = client.session.prompt({ sessionID, ...said(can.permission.prompt) });
    const asked = await events.until(
      (event) => event.type === "permission.asked" && event.properties.sessionID === sessionID,
    );
    assert.ok(asked.type === "permission.asked");
    const { id, permission, patterns, always, tool } = asked.properties;
    assert.ok(permission && patterns.length && always.length);
    const running = events.seen.findLast((event) => event.type === "message.part.updated");
    assert.ok(running?.type === "message.part.updated" && running.properties.part.type === "tool");
    // While it is pending, the terminal interface leaves out what it asks for.
    if (given.bridge) assert.equal(running.properties.part.state.status, "running");
    assert.equal(running.properties.part.callID, tool?.callID);
    assert.ok(ok(await client.permission.list()).some((each) => each.id === id));

    assert.equal(ok(await client.permission.reply({ requestID: id, reply: "once" })), true);
    const replied = await events.until(
      (event) => event.type === "permission.replied" && event.properties.sessionID === sessionID,
    );
    assert.ok(replied.type === "permission.replied");
    assert.deepEqual(replied.properties, { sessionID, requestID: id, reply: "once" });
    ok(await prompt);
    await events.until(idle(sessionID));
    await events.close();
    const parts = events.seen.flatMap((event) =>
      event.type === "message.part.updated" &&
      event.properties.part.type === "tool" &&
      event.properties.part.sessionID === sessionID
        ? [event.properties.part]
        : [],
    );
    assert.equal(new Set(parts.map((part) => part.id)).size, 1);
    assert.equal(parts.at(-1)?.state.status, "completed");
    assert.ok(!ok(await client.permission.list()).some((each) => each.id === id));
  });

  test("a permission is rejected by the session's own path", async () => {
    const { sessionID, answer, request } = await asked("permission.asked", can.permission.prompt);
    const rejection = { sessionID, permissionID: request.id, response: "reject" } as const;
    assert.equal(ok(await client.permission.respond(rejection)), true);
    ok(await answer);
    const parts = ok(await client.session.messages({ sessionID })).flatMap((message) => message.parts);
    const tool = parts.find((part) => part.type === "tool");
    assert.ok(tool?.type === "tool");
    assert.equal(tool.state.status, "error");
  });

  test("a question is answered by a label, and one is rejected", async () => {
    const { sessionID } = await opened();
    const events = await listening();
    const asking = (event: Event): boolean =>
      event.type === "question.asked" && event.properties.sessionID === sessionID;
    const first = client.session.prompt({ sessionID, ...said(can.question.prompt) });
    const asked = await events.until(asking);
    assert.ok(asked.type === "question.asked");
    const [question] = asked.properties.questions;
    assert.equal(question?.question, can.question.shows);
    assert.equal(question?.options[1]?.label, "Green");
    assert.ok(ok(await client.question.list()).some((each) => each.id === asked.properties.id));
    const answers = [["Green"]];
    assert.equal(ok(await client.question.reply({ requestID: asked.properties.id, answers })), true);
    assert.ok(textOf(ok(await first)).includes(can.question.says));

    const second = client.session.prompt({ sessionID, ...said(can.question.prompt) });
    const again = await events.until(asking);
    assert.ok(again.type === "question.asked");
    assert.equal(ok(await client.question.reject({ requestID: again.properties.id })), true);
    await events.until((event) => event.type === "question.rejected" && event.properties.sessionID === sessionID);
    ok(await second);
    await events.close();
  });

  test("unknown ones are not found", async () => {
    const permission = `per_${"0".repeat(26)}`;
    const question = `que_${"0".repeat(26)}`;
    const message = (kind: string, id: string): object => ({
      _tag: `${kind}NotFoundError`,
      requestID: id,
      message: `${kind} request not found: ${id}`,
    });
    assert.deepEqual(refused(await client.permission.reply({ requestID: permission, reply: "once" })), [
      404,
      message("Permission", permission),
    ]);
    const answers = [["Red"]];
    const missing = [404, message("Question", question)];
    assert.deepEqual(refused(await client.question.reply({ requestID: question, answers })), missing);
    assert.deepEqual(refused(await client.question.reject({ requestID: question })), missing);
  });
});

/** Prompts of the mock agent's own. */
suite("what agents do", { timeout: LONGEST, skip: !given.bridge, concurrency: true }, () => {
  test("a plan is a list of todos", async () => {
    const { sessionID } = await opened();
    const events = await listening();
    ok(await client.session.prompt({ sessionID, ...said("make a plan") }));
    await events.until(idle(sessionID));
    await events.close();
    const todos = ok(await client.session.todo({ sessionID }));
    assert.deepEqual(
      todos.map((todo) => todo.status),
      ["completed", "completed", "completed"],
    );
    const told = events.seen.findLast((event) => event.type === "todo.updated" && event.properties.sessionID === sessionID);
    assert.ok(told?.type === "todo.updated");
    assert.deepEqual(told.properties.todos, todos);
  });

  test("an edit has its diff", async () => {
    const { sessionID } = await opened();
    const { parts } = ok(await client.session.prompt({ sessionID, ...said("use a tool") }));
    const tool = parts.find((part) => part.type === "tool");
    assert.ok(tool?.type === "tool" && tool.state.status === "completed");
    assert.equal(tool.tool, "edit");
    assert.match(String(tool.state.input["filePath"]), /greeting\.txt$/);
    assert.match(String(tool.state.metadata["diff"]), /^-Hello\.$[^]*^\+Hello, world!$/m);
  });

  test("a form of several fields is several questions", async () => {
    const { answer, request } = await asked("question.asked", "show me a form");
    const [color, gift, amount, note] = request.questions;
    assert.deepEqual(
      color?.options.map((option) => option.label),
      ["red", "green", "blue"],
    );
    assert.equal(color?.custom, false);
    assert.equal(gift?.options.length, 2);
    assert.deepEqual([amount?.options, note?.options], [[], []]);
    const answers = [["green"], [gift?.options[0]?.label ?? ""], ["3"], ["thank you"]];
    ok(await client.question.reply({ requestID: request.id, answers }));
    const filled = textOf(ok(await answer)).replace("You filled in: ", "");
    assert.deepEqual(JSON.parse(filled), { amount: 3, color: "green", gift: true, note: "thank you" });
  });

  test("a question takes a free text", async () => {
    const { answer, request } = await asked("question.asked", can.question.prompt);
    ok(await client.question.reply({ requestID: request.id, answers: [["Purple"]] }));
    assert.equal(textOf(ok(await answer)), 'You answered: [["Purple"]]');
  });

  test("a permission is given for good", async () => {
    const { answer, request } = await asked("permission.asked", can.permission.prompt);
    assert.equal(request.permission, "edit");
    assert.match(String(request.metadata["diff"]), /^\+Permission was given\.$/m);
    ok(await client.permission.reply({ requestID: request.id, reply: "always" }));
    assert.equal(textOf(ok(await answer)), "You chose: allow_always");
  });

  test("a picture is attached", async () => {
    const { sessionID } = await opened();
    const url = `data:image/png;base64,${btoa("\x89PNG\r\n\x1a\n")}`;
    const file = { type: "file" as const, mime: "image/png", filename: "dot.png", url };
    const parts = [{ type: "text" as const, text: "look" }, file];
    assert.match(textOf(ok(await client.session.prompt({ sessionID, model, parts }))), /You attached:\n.*image\/png/);
  });

  test("a slash command is a prompt that begins with it", async () => {
    const { sessionID } = await opened();
    const events = await listening();
    const answer = ok(await client.session.command({ sessionID, command: "say", arguments: "good morning" }));
    assert.match(textOf(answer), /You said: \/say good morning/);
    await events.until(
      (event) => event.type === "command.executed" && event.properties.sessionID === sessionID,
    );
    await events.close();
  });

  test("the first prompt is the title, and a rename stays", async () => {
    const { sessionID } = await opened();
    ok(await client.session.prompt({ sessionID, ...said(can.hello.prompt) }));
    assert.equal(ok(await client.session.get({ sessionID })).title, can.hello.prompt);
    ok(await client.session.update({ sessionID, title: "Mine" }));
    ok(await client.session.prompt({ sessionID, ...said(can.again.prompt) }));
    assert.equal(ok(await client.session.get({ sessionID })).title, "Mine");
    assert.ok(ok(await client.session.list({ search: "mine" })).some((session) => session.id === sessionID));
  });

  test("the model and the mode of a prompt are set at the agent", async () => {
    const { sessionID } = await opened();
    const other = { providerID: model.providerID, modelID: can.model_ids[1] };
    ok(await client.session.prompt({ sessionID, ...said("hello"), model: other, agent: "plan" }));
    const session = ok(await client.session.get({ sessionID }));
    assert.equal(session.model?.id, other.modelID);
    assert.equal(session.agent, "plan");
  });

  test("a session is bound before its first prompt", async () => {
    const { sessionID } = await opened();
    const chosen = { providerID: model.providerID, modelID: can.model_ids[1], messageID: `msg_${"0".repeat(26)}` };
    assert.equal(ok(await client.session.init({ sessionID, ...chosen })), true);
    assert.equal(ok(await client.session.get({ sessionID })).model?.id, can.model_ids[1]);
  });

  test("what is meant for OpenCode itself is accepted", async () => {
    const answers = await Promise.all([
      client.instance.dispose(),
      client.global.dispose(),
      client.tui.appendPrompt({ text: "hello" }),
      client.tui.openHelp(),
      client.tui.openModels(),
      client.tui.openSessions(),
      client.tui.openThemes(),
      client.tui.submitPrompt(),
      client.tui.clearPrompt(),
      client.tui.executeCommand({ command: "session_new" }),
      client.tui.showToast({ message: "hello", variant: "info" }),
    ]);
    for (const answer of answers) assert.equal(ok(answer), true);
  });
});

suite("two directories", { timeout: LONGEST }, () => {
  const elsewhere = createOpencodeClient({ ...options, directory: given.other_directory });

  test("do not mix", async () => {
    const here = await listening();
    const there = await Events.open<Event>(elsewhere.event.subscribe());
    const { sessionID } = await opened();
    const other = ok(await elsewhere.session.create({}));
    assert.equal(other.directory, given.other_directory);
    ok(await client.session.prompt({ sessionID, ...said(can.hello.prompt) }));
    ok(await elsewhere.session.prompt({ sessionID: other.id, ...said(can.again.prompt) }));
    await Promise.all([here.until(idle(sessionID)), there.until(idle(other.id))]);
    await Promise.all([here.close(), there.close()]);
    assert.ok(!JSON.stringify(here.seen).includes(other.id));
    assert.ok(!JSON.stringify(there.seen).includes(sessionID));
    const ids = ok(await elsewhere.session.list({ directory: given.other_directory })).map((session) => session.id);
    assert.deepEqual(ids, [other.id]);
    assert.ok(!ok(await client.session.list()).some((session) => session.id === other.id));
  });
});
