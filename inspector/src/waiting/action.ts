/**
 * What an agent wants to do, from its own request: the command, the files, and all else that it passes to its tool.
 *
 * Titles and descriptions are an agent's words about it. They never stand in for what is done.
 */

import type { ToolCallContent, ToolCallLocation, ToolCallUpdate, ToolKind } from "@agentclientprotocol/sdk";

import { type Start, startsOf } from "../text/numbering.js";

/** What a tool call would do. */
export interface Action {
  readonly kind: ToolKind;
  /** The agent's words; they may say anything. */
  readonly title: string;
  /** The command line, when there is one. */
  readonly command: string | undefined;
  readonly diffs: readonly ShownChange[];
  /** Texts that the agent shows along with it. */
  readonly texts: readonly string[];
  /** Where it happens. */
  readonly paths: readonly string[];
  /** Everything else that is passed to the tool, by name. */
  readonly inputs: readonly { readonly name: string; readonly value: string }[];
  /** Whether the agent has said what it passes to its tool. */
  readonly isToldInFull: boolean;
}

/** A change of a file, as the agent shows it. */
export interface ShownChange {
  readonly path: string;
  readonly before: string | undefined;
  readonly after: string;
  /** Where it begins in the file, when the agent says so. */
  readonly start: Start | undefined;
}

type Fields = Readonly<Record<string, unknown>>;

const COMMANDS = ["command", "cmd", "commandLine", "command_line", "shell_command", "script", "argv"];
const ARGUMENTS = ["args", "arguments"];
const KINDS = new Set<unknown>([
  "read",
  "edit",
  "delete",
  "move",
  "search",
  "execute",
  "think",
  "fetch",
  "switch_mode",
  "other",
]);
const MAX_VALUE = 200_000;

/** What a request asks for; `known` is what was said of the same tool call before. */
export function actionOf(asked: ToolCallUpdate, known?: Partial<ToolCallUpdate>): Action {
  const said = <K extends keyof ToolCallUpdate>(key: K): unknown => asked[key] ?? known?.[key];
  const input = said("rawInput");
  const content = list(said("content")) as ToolCallContent[];
  const locations = list(said("locations")) as ToolCallLocation[];
  const starts = startsOf(content, locations, [input]);
  const kind = said("kind");
  const { command, used } = commandOf(input);
  return {
    kind: KINDS.has(kind) ? (kind as ToolKind) : "other",
    title: text(said("title")) ?? "",
    command,
    diffs: content.flatMap((each, index) =>
      each?.type === "diff"
        ? [{ path: text(each.path) ?? "", before: text(each.oldText), after: text(each.newText) ?? "", start: starts[index] }]
        : [],
    ),
    texts: content.flatMap((each) =>
      each?.type === "content" && each.content?.type === "text" && typeof each.content.text === "string"
        ? [each.content.text]
        : [],
    ),
    paths: locations.flatMap((each) => text(each?.path) ?? []),
    inputs: inputsOf(input, used),
    isToldInFull: input !== undefined && input !== null,
  };
}

/** One line for lists: the command, else the first path, else the title. */
export function summaryOf(action: Action): string {
  return action.command ?? action.diffs[0]?.path ?? action.paths[0] ?? action.title;
}

/** A command and its arguments as one line, quoted so that each argument can be told from the others. */
export function commandLine(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

function commandOf(input: unknown): { command: string | undefined; used: ReadonlySet<string> } {
  const none = { command: undefined, used: new Set<string>() };
  if (!isFields(input)) return none;
  const given = COMMANDS.filter((name) => Object.hasOwn(input, name));
  const [name] = given;
  // Two of them leave open which one counts: then all are shown, by their names.
  if (name === undefined || given.length > 1) return none;
  const value = input[name];
  const listed = ARGUMENTS.filter((each) => Array.isArray(input[each]));
  const [argumentsName] = listed;
  if (typeof value === "string") {
    if (argumentsName === undefined) return { command: value, used: new Set([name]) };
    const words = input[argumentsName] as unknown[];
    if (listed.length > 1 || !words.every((each) => typeof each === "string")) return none;
    return { command: [value, commandLine(words as string[])].join(" "), used: new Set([name, argumentsName]) };
  }
  if (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((each) => typeof each === "string") &&
    argumentsName === undefined
  ) {
    return { command: commandLine(value as string[]), used: new Set([name]) };
  }
  return none;
}

function inputsOf(input: unknown, used: ReadonlySet<string>): Action["inputs"] {
  if (input === undefined || input === null) return [];
  if (!isFields(input)) return [{ name: "input", value: shown(input) }];
  return Object.entries(input)
    .filter(([name]) => !used.has(name))
    .map(([name, value]) => ({ name, value: shown(value) }));
}

function shown(value: unknown): string {
  const whole = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return whole.length > MAX_VALUE
    ? `${whole.slice(0, MAX_VALUE)}… (${whole.length - MAX_VALUE} more characters)`
    : whole;
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}
