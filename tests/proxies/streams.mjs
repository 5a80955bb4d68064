// Several streams of /acp on one HTTP/2 connection, one of which is not read for a while. Prints what came on each.
//
//     node streams.mjs URL TOKEN CWD
import { connect } from "node:http2";

const [, , url, token, cwd] = process.argv;
const UPDATES = 300;
const LARGE = 200;

// One stream may hold back little, and all of them together much: what is not read must not take the others' room.
const client = connect(url, { rejectUnauthorized: false, settings: { initialWindowSize: 64 << 10 } });
client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
await new Promise((resolve) => client.once("connect", resolve));
client.setLocalWindowSize(64 << 20);

const common = { authorization: `Bearer ${token}` };
let connection;

async function post(envelope) {
  const request = client.request({
    ":method": "POST",
    ":path": "/acp/scripted",
    "content-type": "application/json",
    ...common,
    ...(connection ? { "acp-connection-id": connection } : {}),
  });
  request.end(JSON.stringify({ jsonrpc: "2.0", ...envelope }));
  const headers = await new Promise((resolve, reject) => {
    request.once("response", resolve);
    request.once("error", reject);
  });
  let text = "";
  for await (const piece of request.setEncoding("utf8")) text += piece;
  return { status: headers[":status"], id: headers["acp-connection-id"], text };
}

/** A stream: what has come on it, and a wait for what is to come. */
class Events {
  constructor(session) {
    this.seen = [];
    this.waiting = [];
    this.request = client.request({
      ":method": "GET",
      ":path": "/acp",
      accept: "text/event-stream",
      ...common,
      "acp-connection-id": connection,
      ...(session ? { "acp-session-id": session } : {}),
    });
    this.opened = new Promise((resolve) => this.request.once("response", resolve));
  }

  read() {
    let rest = "";
    this.request.setEncoding("utf8").on("data", (piece) => {
      const events = (rest + piece).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (data) this.seen.push(JSON.parse(data.slice(6)));
      }
      for (const look of this.waiting) look();
    });
    return this;
  }

  async answer(id) {
    const found = () => this.seen.find((one) => one.id === id && !("method" in one));
    while (!found()) await new Promise((resolve) => this.waiting.push(resolve));
    return found();
  }

  numbers() {
    const texts = this.seen.map((one) => one.params?.update?.content?.text).filter(Boolean);
    return texts.map((text) => Number.parseInt(text));
  }
}

const opened = await post({ id: 0, method: "initialize", params: { protocolVersion: 1 } });
connection = opened.id;
const own = new Events(undefined).read();
await own.opened;

const sessions = [];
for (const id of [1, 2, 3]) {
  await post({ id, method: "session/new", params: { cwd, mcpServers: [] } });
  sessions.push((await own.answer(id)).result.sessionId);
}
const streams = sessions.map((session) => new Events(session));
await Promise.all(streams.map((stream) => stream.opened));
const [stuck, ...quick] = streams;
for (const stream of quick) stream.read();

const flood = (count, size) => [{ type: "text", text: JSON.stringify([["flood", count, size]]) }];
const prompts = [flood(LARGE, 10_000), flood(UPDATES, 50), flood(UPDATES, 50)];
for (const [index, sessionId] of sessions.entries()) {
  const { status } = await post({ id: 10 + index, method: "session/prompt", params: { sessionId, prompt: prompts[index] } });
  if (status !== 202) throw new Error(`status ${status}`);
}
await quick[0].answer(11);
await quick[1].answer(12);
const meanwhile = stuck.seen.length;
stuck.read();
await stuck.answer(10);
console.log(
  JSON.stringify({
    protocol: client.alpnProtocol,
    meanwhile,
    numbers: streams.map((stream) => stream.numbers()),
    ordered: await post({ method: "$/cancel_request", params: { requestId: 99 } }).then(({ status }) => status),
  }),
);
client.destroy();
