/** An agent that writes: the prompt `write N` makes it send N pieces of a text in Markdown, as fast as the pipe takes them. */

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

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (method === "initialize") send({ id, result: { protocolVersion: 1, agentCapabilities: {} } });
  else if (method === "session/new") send({ id, result: { sessionId: `writer-${process.pid}-${(sessions += 1)}` } });
  else if (method === "session/prompt") {
    const count = Number(/write (\d+)/.exec(params.prompt[0].text)?.[1] ?? 1);
    for (const text of pieces(count)) {
      const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
      send({ method: "session/update", params: { sessionId: params.sessionId, update } });
    }
    send({ id, result: { stopReason: "end_turn" } });
  } else if (id !== undefined) send({ id, error: { code: -32601, message: "not here" } });
}
