/** A program with a server of its own: prints the pids of that and of an agent, then ends as told, or is killed. */

import { SandboxAgent, type StartOptions } from "sandboxagent";

import { children } from "./embedding.js";

const [how, options] = process.argv.slice(2) as [string, string];
const client = await SandboxAgent.start(JSON.parse(options) as StartOptions);
const [server] = children();
if (how === "idle") {
  console.log(JSON.stringify({ server }));
} else {
  const session = await client.sessions.create();
  const agent = Number(await session.prompt('[["pid"]]').text());
  session.prompt('[["wait_cancel"]]');
  console.log(JSON.stringify({ server, agent }));
  if (how === "exit") process.exit(0);
  if (how === "throw") throw new Error("a bug of the host");
}
