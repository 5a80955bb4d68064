/** Server-sent events out of bytes, however they are cut. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, type ServerEvent, eventsOf } from "../dist/sse.js";
import { randomness } from "./support/proxy.js";

function parsed(text: string, size = text.length): ServerEvent[] {
  const parser = new EventParser();
  let found: ServerEvent[] = [];
  for (let start = 0; start < text.length; start += size)
    found = found.concat(parser.push(text.slice(start, start + size)));
  return found;
}

test("an event has a name, data and an id", () => {
  assert.deepEqual(parsed("event: changes\nid: 7\ndata: {}\n\n"), [{ event: "changes", data: "{}", id: "7" }]);
});

test("an event without a name is a message, and the id stays until there is another", () => {
  assert.deepEqual(parsed("id: 1\ndata: a\n\ndata: b\n\n"), [
    { event: "message", data: "a", id: "1" },
    { event: "message", data: "b", id: "1" },
  ]);
});

test("lines of data are joined, and one space after the colon is not data", () => {
  assert.deepEqual(parsed("data:one\ndata:  two\ndata\n\n")[0]?.data, "one\n two\n");
});

test("comments, unknown fields and events without data are passed over", () => {
  assert.deepEqual(
    parsed(": open\n\nretry: 7\nsomething\n\nevent: x\n\ndata: a\n\n").map(({ data }) => data),
    ["a"],
  );
});

test("an event that is not ended is none", () => {
  assert.deepEqual(parsed("data: a\n"), []);
});

for (const [name, end] of [
  ["\\n", "\n"],
  ["\\r\\n", "\r\n"],
  ["\\r", "\r"],
] as const) {
  test(`lines that end with ${name} may be cut anywhere`, () => {
    const text = ["id: 1", "data: a", "", ": comment", "", "event: e", "id: 2", "data: b", "data: c", "", ""].join(end);
    const whole = parsed(text);

    assert.deepEqual(whole, [
      { event: "message", data: "a", id: "1" },
      { event: "e", data: "b\nc", id: "2" },
    ]);
    for (let size = 1; size < text.length; size += 1) assert.deepEqual(parsed(text, size), whole, `pieces of ${size}`);
  });
}

test("letters of several bytes may be cut anywhere", async () => {
  const random = randomness(7);
  const text = "Grüße 🌍 日本 \u2028 é";
  const bytes = new TextEncoder().encode(`id: 1\ndata: ${text}\n\nid: 2\ndata: ${text}${text}\n\n`);
  for (let round = 0; round < 200; round += 1) {
    const cuts = Array.from({ length: 5 }, () => Math.floor(random() * bytes.length)).sort((a, b) => a - b);
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        [0, ...cuts].forEach((start, index) => controller.enqueue(bytes.slice(start, cuts[index] ?? bytes.length)));
        controller.close();
      },
    });
    const found: ServerEvent[] = [];
    for await (const events of eventsOf(body)) found.push(...events);
    assert.deepEqual(
      found.map(({ data }) => data),
      [text, text + text],
    );
  }
});

test("a line of many megabytes in small pieces takes no longer than its length", { timeout: 120_000 }, () => {
  const parser = new EventParser();
  const piece = "x".repeat(1024);
  const pieces = 32 * 1024;
  parser.push("data: ");
  for (let index = 0; index < pieces; index += 1) parser.push(piece);

  assert.equal(parser.push("\n\n")[0]?.data.length, pieces * piece.length);
});

test("many lines in one piece take no longer than their length", { timeout: 120_000 }, () => {
  const text = "data: x\n\n".repeat(200_000);

  assert.equal(parsed(text).length, 200_000);
});

test("leaving the loop gives the body up", async () => {
  let cancelled = false;
  const body = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("data: x\n\n")),
    cancel: () => {
      cancelled = true;
    },
  });

  for await (const _ of eventsOf(body)) break;

  assert.equal(cancelled, true);
});
