/**
 * An agent that writes: the prompt `write N` makes it send N pieces of a text in Markdown, as fast as the pipe takes them;
 * `rewrite N` a change of every fourth of N lines of a file.
 */

import { createInterface } from "node:readline";

const WORDS = "The parser reads a line and keeps what it found so that the next one can go on from there without a copy".split(" ");
let sessions = 0;

function send(envelope) {
  process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...envelope })}\n`);
}

/** The pieces of a text: words, with a paragraph now and then, a list and some code. */
function* pieces(count) {
  for (let index = 0; index < count - 1; index += 1) {
    if (index % 400 === 399) yield "\n\n```python\nprint('a piece of code')\n```\n\n";
    else if (index % 120 === 119) yield "\n\n- a point of a list\n- and **another**\n\n";
    else yield index % 40 === 39 ? ".\n\n" : `${WORDS[index % WORDS.length]} `;
  }
  yield "the-last-word";
}

function* chunks(count) {
  for (const text of pieces(count)) yield { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
}

function rewritten(count) {
  const olds = Array.from({ length: count }, (_, index) => `    field_${index} = Field(${index}, type=Text)\n`);
  const news = olds.map((line, index) => (index % 4 === 2 ? line.replace("type=Text", "kind=Text()") : line));
  const diff = { type: "diff", path: "/tmp/schema.py", oldText: olds.join(""), newText: news.join("") };
  return { sessionUpdate: "tool_call", toolCallId: "c1", title: "Write it anew", kind: "edit", status: "completed", content: [diff] };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (method === "initialize") send({ id, result: { protocolVersion: 1, agentCapabilities: {} } });
  else if (method === "session/new") send({ id, result: { sessionId: `writer-${process.pid}-${(sessions += 1)}` } });
  else if (method === "session/prompt") {
    const [, word, number = "1"] = /(write|rewrite) (\d+)/.exec(params.prompt[0].text) ?? [];
    for (const update of word === "rewrite" ? [rewritten(Number(number))] : chunks(Number(number))) {
      send({ method: "session/update", params: { sessionId: params.sessionId, update } });
    }
    send({ id, result: { stopReason: "end_turn" } });
  } else if (id !== undefined) send({ id, error: { code: -32601, message: "not here" } });
}
