#!/usr/bin/env node
// The smallest agent that can be installed, started and talked to. A prompt is answered with its own text, or, when the
// text is a word that it knows, with what is asked for: `environ`, `argv`, `version`.
const fs = require("fs");
const path = require("path");

const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const about = () => JSON.parse(fs.readFileSync(path.join(__dirname, "package.json"), "utf8"));
const answers = {
  environ: () => JSON.stringify(process.env),
  argv: () => JSON.stringify(process.argv.slice(1)),
  version: () => about().version,
};
let sessions = 0;

function handle({ id, method, params }) {
  if (method === "initialize") {
    const info = { name: about().name, title: "Tiny", version: about().version };
    send({ id, result: { protocolVersion: 1, agentInfo: info, agentCapabilities: { loadSession: false, tiny: true } } });
  } else if (method === "session/new") {
    sessions += 1;
    send({ id, result: { sessionId: `tiny-${process.pid}-${sessions}` } });
  } else if (method === "session/prompt") {
    const text = params.prompt[0].text;
    const content = { type: "text", text: answers[text] ? answers[text]() : text };
    const update = { sessionUpdate: "agent_message_chunk", content };
    send({ method: "session/update", params: { sessionId: params.sessionId, update } });
    send({ id, result: { stopReason: "end_turn" } });
  } else if (id !== undefined) {
    send({ id, error: { code: -32601, message: `unknown method ${method}` } });
  }
}

require("readline").createInterface({ input: process.stdin }).on("line", (line) => handle(JSON.parse(line)));
