/** The peer's own TypeScript SDK at work: updates come to a listener, and a prompt's promise says that it is over. */

import { SandboxAgent } from "../../.cache/bench/sdk/node_modules/sandbox-agent/dist/index.js";
import { run } from "./driver.mjs";

async function opened(client, { agent, cwd }, close) {
  const session = await client.createSession({ agent, cwd });
  let taker = () => undefined;
  session.onEvent(({ payload }) => {
    if (payload.method !== "session/update") return;
    const { update } = payload.params;
    if (update.sessionUpdate === "agent_message_chunk") taker(update.content.text);
  });
  const prompt = async (text, take) => {
    taker = take;
    await session.prompt([{ type: "text", text }]);
  };
  return { prompt, close };
}

async function started(job) {
  const { local } = await import("../../.cache/bench/sdk/node_modules/sandbox-agent/dist/providers/local.js");
  const client = await SandboxAgent.start({ sandbox: local({ binaryPath: job.program, log: "silent" }) });
  return await opened(client, job, () => client.destroySandbox());
}

async function connected(job) {
  const client = await SandboxAgent.connect({ baseUrl: job.url });
  return await opened(client, job, () => client.dispose());
}

await run({ connect: connected, start: started });
