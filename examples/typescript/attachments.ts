/**
 * Gives an agent a file to look at.
 *
 * usage: node examples/typescript/attachments.ts [agent] [file] [prompt]
 */

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

import { SandboxAgent } from "sandboxagent";

const [agent = "mock", file = import.meta.filename, prompt = "What do you make of these?"] = process.argv.slice(2);
const cwd = await mkdtemp(join(tmpdir(), "attachments-"));
try {
  await using client = await SandboxAgent.start();
  const session = await client.sessions.create(agent, { cwd });

  // The directory may be on another machine: files go there through the server.
  await session.files.write("inbox/report.csv", "region,sold\nnorth,17\nsouth,42\n");
  await session.files.write(`inbox/${basename(file)}`, await readFile(file));

  // Paths are relative to the session's directory. Images go to agents that take images as images, all else as links;
  // an object has more to say about a file.
  const report = { path: "inbox/report.csv", mime: "text/csv", filename: "Sales of this week" };
  console.log(await session.prompt(prompt, { attachments: [report, `inbox/${basename(file)}`] }).text());
} finally {
  await rm(cwd, { recursive: true });
}
