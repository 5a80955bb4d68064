/** A session with a real agent by OpenCode's SDK (the export `/v2`): its turns, what it asks, and what is kept of it. */

import assert from "node:assert/strict";
import { suite, test } from "node:test";

import {
  createOpencodeClient,
  type Event,
  type EventPermissionAsked,
  type EventQuestionAsked,
  type Part,
} from "@opencode-ai/sdk/v2";

import { Events, LONGEST, can, model, ok, options, textOf } from "./support.ts";

const client = createOpencodeClient(options);
const { id: sessionID } = ok(
  await client.session.create({ model: { providerID: model.providerID, id: model.modelID } }),
);
const events = await Events.open<Event>(client.event.subscribe());

async function permission(): Promise<EventPermissionAsked["properties"]> {
  const isIt = (event: Event): event is EventPermissionAsked => event.type === "permission.asked";
  const { properties } = await events.until(isIt);
  assert.equal(properties.sessionID, sessionID);
  return properties;
}

async function question(): Promise<EventQuestionAsked["properties"]> {
  const isIt = (event: Event): event is EventQuestionAsked => event.type === "question.asked";
  const { properties } = await events.until(isIt);
  assert.equal(properties.sessionID, sessionID);
  return properties;
}

function isEnd(event: Event): boolean {
  return event.type === "session.idle" && event.properties.sessionID === sessionID;
}

function say(text: string): ReturnType<typeof client.session.prompt> {
  return client.session.prompt({ sessionID, model, parts: [{ type: "text", text }] });
}

async function tools(): Promise<Extract<Part, { type: "tool" }>[]> {
  const parts = ok(await client.session.messages({ sessionID })).flatMap((message) => message.parts);
  return parts.filter((part) => part.type === "tool");
}

suite("a session with a real agent", { timeout: LONGEST }, () => {
  test("a prompt is answered, and read back", async () => {
    const answer = ok(await say(can.hello.prompt));
    assert.equal(textOf(answer), can.hello.shows);
    assert.ok(answer.info.role === "assistant" && answer.info.modelID === model.modelID);
    const [user, assistant] = ok(await client.session.messages({ sessionID }));
    assert.ok(user && assistant);
    assert.equal(textOf(user), can.hello.prompt);
    assert.deepEqual(assistant, answer);
  });

  test("a permission is rejected", async () => {
    const prompt = say(can.permission.prompt);
    const { id } = await permission();
    assert.equal(ok(await client.permission.reply({ requestID: id, reply: "reject" })), true);
    ok(await prompt);
    assert.deepEqual(
      (await tools()).map((tool) => tool.state.status),
      ["error"],
    );
  });

  test("a permission is given once", async () => {
    const prompt = say(can.permission.prompt);
    const request = await permission();
    assert.ok(JSON.stringify(request).includes(can.permission.shows), JSON.stringify(request));
    assert.ok(ok(await client.permission.list()).some((each) => each.id === request.id));
    assert.equal(ok(await client.permission.reply({ requestID: request.id, reply: "once" })), true);
    assert.equal(textOf(ok(await prompt)), can.permission.says);
    const tool = (await tools()).at(-1);
    assert.equal(tool?.state.status, "completed");
    assert.equal(tool.callID, request.tool?.callID);
    assert.deepEqual(ok(await client.permission.list()), []);
  });

  test("a question is answered by a label", { skip: !("question" in can) }, async () => {
    const prompt = say(can.question.prompt);
    const { id, questions } = await question();
    assert.equal(questions[0]?.question, can.question.shows);
    assert.ok(questions[0].options.some((option) => option.label === "Postgres"));
    assert.equal(ok(await client.question.reply({ requestID: id, answers: [["Postgres"]] })), true);
    assert.equal(textOf(ok(await prompt)), can.question.says);
  });

  test("the stream tells of the end of every turn, once", async () => {
    const messages = ok(await client.session.messages({ sessionID }));
    const turns = messages.filter(({ info }) => info.role === "user").length;
    const ends = (): number => events.seen.filter(isEnd).length;
    while (ends() < turns) await events.until(isEnd);
    assert.equal(ends(), turns);
    await events.close();
  });
});
