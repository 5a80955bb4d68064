/**
 * Decides what an agent may do: reads and edits inside the project, and for everything else a person is asked.
 *
 * usage: node examples/typescript/permissions.ts [agent] [prompt ...]
 *
 * The project is the current directory. Without an answer, or without a terminal, the answer is no.
 */

import { lstat, realpath } from "node:fs/promises";
import { dirname, isAbsolute, relative, resolve } from "node:path";
import { createInterface } from "node:readline";

import { type PermissionHandler, SandboxAgent, type ToolCallUpdate } from "sandboxagent";

const [agent = "mock", ...prompts] = process.argv.slice(2);
const project = process.cwd();
const terminal = createInterface({ input: process.stdin });
const lines = terminal[Symbol.asyncIterator]();

/** Answers one request. If this throws, the SDK rejects it. */
const onPermission: PermissionHandler = async (request) => {
  const { title, kind } = request.toolCall;
  const paths = pathsOf(request.toolCall);
  if ((kind === "read" || kind === "edit") && paths.length > 0 && (await Promise.all(paths.map(inside))).every(Boolean)) {
    console.log(`[${title}: allowed]`);
    return request.allow();
  }
  console.log(`[${title}: ${kind ?? "something else"}, ${paths.join(", ") || "no file"}]`);
  process.stdout.write("Allow it? [y/N] ");
  // Another client may answer first: then `request.signal` aborts, and our answer is not needed.
  const line = await lines.next();
  return /^y(es)?$/i.test(line.value?.trim() ?? "") ? request.allow() : request.reject();
};

/** The files that a tool call says it is about. What must hold against an agent that lies is the sandbox's to enforce. */
function pathsOf({ locations, content }: ToolCallUpdate): string[] {
  const edits = (content ?? []).flatMap((each) => (each.type === "diff" ? [each.path] : []));
  return [...new Set([...(locations ?? []).map(({ path }) => path), ...edits])];
}

/** Whether a path leads to something in the project, links followed; in doubt it does not. */
async function inside(path: string): Promise<boolean> {
  const full = resolve(project, path);
  const exists = await lstat(full).then(() => true, () => false);
  // A file that is yet to be made is where its directory is. A link that leads to nothing leads nowhere we know.
  const real = await realpath(exists ? full : dirname(full)).catch(() => undefined);
  const way = real === undefined ? ".." : relative(project, real);
  return !way.startsWith("..") && !isAbsolute(way);
}

await using client = await SandboxAgent.start({ onPermission });
const session = await client.sessions.create(agent);
for (const prompt of prompts.length > 0 ? prompts : ["Ask me for permission, please."]) {
  console.log(await session.prompt(prompt).text());
}
terminal.close();
