/** Our TypeScript SDK at work. */

import { SandboxAgent, textOf } from "../../sdks/typescript/dist/index.js";
import { run } from "./driver.mjs";

async function opened(client, { agent, cwd }) {
  const session = await client.sessions.create(agent, { cwd });
  const prompt = async (text, take) => {
    for await (const item of session.prompt(text)) {
      if (item.sessionUpdate === "agent_message_chunk") take(textOf(item));
    }
  };
  return { prompt, close: () => client.close() };
}

async function started(job) {
  return await opened(await SandboxAgent.start({ options: { "config-dir": job.cwd } }), job);
}

async function connected(job) {
  return await opened(await SandboxAgent.connect(job.url, { token: job.token }), job);
}

await run({ connect: connected, start: started });
