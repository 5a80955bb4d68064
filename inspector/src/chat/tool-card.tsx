/** A tool call: what it is, how it stands, where, how long; and what came of it. */

import type { ToolCallContent, ToolKind } from "@agentclientprotocol/sdk";
import {
  ArrowLeftRight,
  Brain,
  Check,
  ChevronRight,
  FileText,
  FolderInput,
  Globe,
  Pencil,
  Search,
  SquareTerminal,
  Trash2,
  Wrench,
  X,
} from "lucide-react";
import { memo, useMemo, type ComponentType, type ReactNode } from "react";

import type { TerminalView, ToolCallItem } from "sandboxagent";
import { Spinner, durationText, useNow } from "../design/index.js";
import { Ansi } from "../text/ansi.js";
import { DiffCount, Diff } from "../text/diff.js";
import { countOf, linesOf } from "../text/changes.js";
import { Code } from "../text/code.js";
import { Markdown } from "../text/markdown.js";
import { type Start, startsOf } from "../text/numbering.js";
import { SafeText } from "../text/safe-text.js";
import { actionOf, commandLine } from "../waiting/action.js";
import { BlockView } from "./block-view.js";
import { useFold } from "./folds.js";

type Icon = ComponentType<{ "aria-hidden": boolean; size: number }>;

const ICONS: Readonly<Record<ToolKind, Icon>> = {
  read: FileText,
  edit: Pencil,
  delete: Trash2,
  move: FolderInput,
  search: Search,
  execute: SquareTerminal,
  think: Brain,
  fetch: Globe,
  switch_mode: ArrowLeftRight,
  other: Wrench,
};

export interface ToolCardProps {
  readonly tool: ToolCallItem;
  readonly terminals: Readonly<Record<string, TerminalView>>;
  readonly isLive: boolean;
  /** Whether a card that asks about it shows the same. */
  readonly isAsked: boolean;
}

export const ToolCard = memo(function ToolCard({ tool: given, terminals, isLive, isAsked }: ToolCardProps): ReactNode {
  const tool = useMemo(() => tidied(given), [given]);
  const isTelling = tool.content.some(({ type }) => type === "diff" || type === "terminal");
  const [open, toggle] = useFold(tool.key, !(isLive && isAsked) && (isTelling || tool.status === "failed"));
  const KindIcon = ICONS[tool.kind] ?? Wrench;
  return (
    <div className={`tool tool-${tool.status}`} data-tool={tool.toolCallId} data-status={tool.status}>
      <button type="button" className="tool-head" aria-expanded={open} onClick={toggle}>
        <span className="tool-icon">
          <KindIcon aria-hidden size={15} />
        </span>
        <span className="tool-title">
          <SafeText text={tool.title} limit={400} />
        </span>
        <Where tool={tool} />
        <Counts content={tool.content} />
        <Duration tool={tool} isLive={isLive} />
        <Status status={tool.status} isLive={isLive && tool.endedAt === undefined} />
        <ChevronRight aria-hidden size={14} className="chevron" />
      </button>
      {open && <ToolBody tool={tool} terminals={terminals} />}
    </div>
  );
});

function Where({ tool }: { readonly tool: ToolCallItem }): ReactNode {
  const [first, ...others] = tool.locations;
  if (first === undefined || tool.title.includes(first.path)) return null;
  return (
    <span className="tool-where" title={first.path}>
      <SafeText text={`${shortPath(first.path)}${first.line ? `:${first.line}` : ""}`} limit={200} />
      {others.length > 0 && ` +${others.length}`}
    </span>
  );
}

function Counts({ content }: { readonly content: ToolCallItem["content"] }): ReactNode {
  const counts = useMemo(() => {
    const diffs = content.filter((each) => each.type === "diff");
    if (diffs.length === 0) return undefined;
    return diffs
      .map((diff) => countOf(linesOf(diff.oldText ?? undefined, diff.newText)))
      .reduce((sum, each) => ({ added: sum.added + each.added, removed: sum.removed + each.removed }));
  }, [content]);
  return counts ? <DiffCount {...counts} /> : null;
}

function Duration({ tool, isLive }: { readonly tool: ToolCallItem; readonly isLive: boolean }): ReactNode {
  if (tool.endedAt !== undefined) return <Took milliseconds={Date.parse(tool.endedAt) - Date.parse(tool.at)} />;
  return isLive ? <Taking since={tool.at} /> : null;
}

function Taking({ since }: { readonly since: string }): ReactNode {
  return <Took milliseconds={Math.max(0, useNow(1_000) - Date.parse(since))} />;
}

function Took({ milliseconds }: { readonly milliseconds: number }): ReactNode {
  return milliseconds >= 1_000 ? <span className="tool-took">{durationText(milliseconds)}</span> : null;
}

function Status({ status, isLive }: { readonly status: ToolCallItem["status"]; readonly isLive: boolean }): ReactNode {
  const words = { pending: "Pending", in_progress: "Running", completed: "Completed", failed: "Failed" } as const;
  const word = words[status] ?? status;
  return (
    <span className="tool-status" title={word}>
      {status === "completed" && <Check aria-hidden size={14} />}
      {status === "failed" && <X aria-hidden size={14} />}
      {status !== "completed" &&
        status !== "failed" &&
        (isLive ? <Spinner label={word} /> : <span className="tool-dot" aria-hidden />)}
      <span className="unseen">{word}</span>
    </span>
  );
}

function ToolBody({
  tool,
  terminals,
}: {
  readonly tool: ToolCallItem;
  readonly terminals: ToolCardProps["terminals"];
}): ReactNode {
  const action = useMemo(
    () => actionOf({ toolCallId: tool.toolCallId, rawInput: tool.rawInput }),
    [tool.toolCallId, tool.rawInput],
  );
  const { content, locations, rawInput, rawOutput } = tool;
  const starts = useMemo(
    () => startsOf(content, locations, [rawInput, rawOutput]),
    [content, locations, rawInput, rawOutput],
  );
  const isBare = tool.content.length === 0 && (tool.rawInput ?? tool.rawOutput ?? undefined) === undefined;
  return (
    <div className="tool-body">
      {isBare && <p className="notice">The agent has said nothing more about this.</p>}
      {action.command !== undefined && (
        <pre className="tool-command" tabIndex={0} aria-label="command" dir="ltr">
          <SafeText text={action.command} />
        </pre>
      )}
      {tool.content.map((content, index) => (
        <ContentView
          key={index}
          content={content}
          start={starts[index]}
          terminals={terminals}
          isOutput={tool.kind === "execute"}
        />
      ))}
      <Raw name="Input" value={tool.rawInput} fold={`${tool.key}:input`} />
      <Raw name="Output" value={tool.rawOutput} fold={`${tool.key}:output`} />
    </div>
  );
}

interface ContentViewProps {
  readonly content: ToolCallContent;
  /** Where a change begins in its file. */
  readonly start: Start | undefined;
  readonly terminals: ToolCardProps["terminals"];
  readonly isOutput: boolean;
}

function ContentView({ content, start, terminals, isOutput }: ContentViewProps): ReactNode {
  if (content.type === "diff") {
    const { path, oldText, newText } = content;
    return <Diff path={path} before={oldText ?? undefined} after={newText} start={start} rows={24} />;
  }
  if (content.type === "terminal") return <TerminalView terminal={terminals[content.terminalId]} />;
  if (content.type !== "content" || !content.content)
    return <Code text={JSON.stringify(content, null, 2)} language="json" />;
  const block = content.content;
  if (block.type !== "text") return <BlockView block={block} />;
  const output = isOutput ? fencedOf(block.text) : undefined;
  if (output !== undefined) return <Ansi output={output} />;
  return (
    <div className="tool-text">
      <Markdown text={block.text} />
    </div>
  );
}

function TerminalView({ terminal }: { readonly terminal: TerminalView | undefined }): ReactNode {
  // One of the agent's own that it says nothing of.
  if (terminal === undefined) return null;
  const { exit, command, args } = terminal;
  return (
    <div className="terminal">
      {command !== "" && (
        <pre className="tool-command" tabIndex={0} aria-label="command" dir="ltr">
          <SafeText text={[command, ...(args.length > 0 ? [commandLine(args)] : [])].join(" ")} />
        </pre>
      )}
      {terminal.output !== "" && <Ansi output={terminal.output} />}
      {exit && (exit.exitCode !== 0 || exit.signal) && (
        <p className="terminal-exit">
          {exit.signal ? `ended by ${exit.signal}` : `exit code ${exit.exitCode ?? "unknown"}`}
        </p>
      )}
    </div>
  );
}

function Raw({
  name,
  value,
  fold,
}: {
  readonly name: string;
  readonly value: unknown;
  readonly fold: string;
}): ReactNode {
  const [open, toggle] = useFold(fold, false);
  const text = useMemo(() => (open && value !== undefined ? JSON.stringify(value, null, 2) : ""), [open, value]);
  if (value === undefined || value === null) return null;
  return (
    <div className="raw">
      <button type="button" className="raw-head" aria-expanded={open} onClick={toggle}>
        <ChevronRight aria-hidden size={12} className="chevron" />
        Raw {name.toLowerCase()}
      </button>
      {open && <Code text={text} language="json" label={`raw ${name.toLowerCase()}`} />}
    </div>
  );
}

/** The output of a command that an agent has put into a Markdown fence; a text with colours as it is. */
function fencedOf(text: string): string | undefined {
  const fenced = /^\s*(`{3,}|~{3,})[^\n`]*\n([\s\S]*?)\n?\1\s*$/.exec(text);
  if (fenced) return fenced[2] ?? "";
  return text.includes("\u001b[") ? text : undefined;
}

function shortPath(path: string): string {
  return path.split("/").slice(-2).join("/");
}

/** Agents send what they like; here it gets the shape that it should have. */
function tidied(tool: ToolCallItem): ToolCallItem {
  return {
    ...tool,
    title: typeof tool.title === "string" ? tool.title : JSON.stringify(tool.title),
    content: list(tool.content).filter(isContent),
    locations: list(tool.locations).filter((each) => typeof each?.path === "string"),
  };
}

function isContent(content: ToolCallContent | null): boolean {
  if (content?.type === "diff") return typeof content.path === "string" && typeof content.newText === "string";
  return typeof content === "object" && content !== null;
}

function list<T>(value: readonly T[]): readonly T[] {
  return Array.isArray(value) ? value : [];
}
