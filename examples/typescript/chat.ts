/**
 * Talks with an agent, and prints what it says while it says it.
 *
 * usage: node examples/typescript/chat.ts [agent] [prompt ...]
 */

import { SandboxAgent, textOf } from "sandboxagent";

const [agent = "mock", ...prompts] = process.argv.slice(2);

await using client = await SandboxAgent.start(); // A private server, stopped when the program ends.
const session = await client.sessions.create(agent);
for (const prompt of prompts.length > 0 ? prompts : ["Hello!", "What can you do? Please help."]) {
  console.log(`> ${prompt}`);
  for await (const update of session.prompt(prompt)) process.stdout.write(textOf(update));
  console.log("\n");
}
