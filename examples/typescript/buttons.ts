/**
 * Keeps an agent's requests as buttons in a database: another process shows them after a restart, and presses one.
 *
 * usage: node examples/typescript/buttons.ts ask [agent] [prompt ...]
 *        node examples/typescript/buttons.ts show
 *        node examples/typescript/buttons.ts press <request> <option>
 *
 * Needs a server: `sandbox-agent server --token secret` in another terminal, or the one that SANDBOX_AGENT_URL and
 * SANDBOX_AGENT_TOKEN name. The database is buttons.json.
 */

import { existsSync, readFileSync, writeFileSync } from "node:fs";

import { AlreadyAnswered, SandboxAgent, SandboxAgentError } from "sandboxagent";

/** A row of the database: two ids are all that is needed to show a request and to answer it. */
interface Row {
  readonly request: string;
  readonly session: string;
}

const [command = "show", ...words] = process.argv.slice(2);
const { SANDBOX_AGENT_URL: url = "http://127.0.0.1:2468", SANDBOX_AGENT_TOKEN: token = "secret" } = process.env;
const rows: Row[] = existsSync("buttons.json") ? JSON.parse(readFileSync("buttons.json", "utf8")) : [];

/** Takes note of every permission; nobody answers here. */
async function ask(agent = "mock", ...prompt: string[]): Promise<void> {
  const session = await client.sessions.create(agent, { cwd: process.cwd() });
  const stored = new Promise<void>((resolve) => {
    client.onPermission((request) => {
      rows.push({ request: request.id, session: request.sessionId });
      writeFileSync("buttons.json", JSON.stringify(rows));
      resolve();
    });
  });
  session.prompt(prompt.join(" ") || "permission").then(undefined, () => undefined);
  await stored;
}

/** Shows the buttons of all requests that are still open. */
async function show(): Promise<void> {
  for (const { request, session } of rows) {
    const open = (await client.pending(session)).find(({ id }) => id === request);
    if (open?.kind !== "permission") console.log(`${request}: no longer open`);
    else console.log(`${request}: ${open.toolCall.title} [${open.options.map(({ optionId }) => optionId).join("] [")}]`);
  }
}

/** Answers a request, once: the second one is told who was first. */
async function press(request = "", option = ""): Promise<void> {
  const row = rows.find((each) => each.request === request);
  if (row === undefined) throw new Error(`${request} is not in the database`);
  try {
    await client.replyPermission(request, option, { sessionId: row.session });
    console.log(`${request}: ${option}`);
  } catch (error) {
    if (error instanceof AlreadyAnswered) console.log(`too late: ${error.outcome}, ${error.decision?.optionId ?? ""}`);
    else if (error instanceof SandboxAgentError) console.log(`not answered: ${error.message}`);
    else throw error;
  }
}

// A handler that returns nothing leaves each request open, for whoever presses its button.
await using client = await SandboxAgent.connect(url, { token, name: "buttons", onPermission: () => undefined });
if (command === "ask") await ask(...words);
else if (command === "press") await press(...words);
else await show();
