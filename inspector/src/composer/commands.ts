/** Slash commands of an agent: which ones fit what is typed. */

import type { AvailableCommand } from "@agentclientprotocol/sdk";

const MAX_COMMANDS = 50;

/** The commands that a text may become; undefined when it is no command being typed. */
export function matching(
  text: string,
  caret: number,
  commands: readonly AvailableCommand[],
): readonly AvailableCommand[] | undefined {
  const typed = /^\/(\S*)$/.exec(text.slice(0, caret));
  if (typed === null || /^\S/.test(text.slice(caret))) return undefined;
  const wanted = (typed[1] ?? "").toLowerCase();
  const named = commands.filter(({ name }) => name.toLowerCase().includes(wanted));
  const first = named.filter(({ name }) => name.toLowerCase().startsWith(wanted));
  const found = [...first, ...named.filter((each) => !first.includes(each))].slice(0, MAX_COMMANDS);
  return found.length > 0 ? found : undefined;
}

/** The text with a command in place of what was typed of it. */
export function completed(text: string, caret: number, command: AvailableCommand): string {
  return `/${command.name} ${text.slice(caret).trimStart()}`;
}
