/** Shows what was said and done in a session: messages, tool calls, plans, and facts. */

import type { ReactNode } from "react";
import type {
  ContentBlock,
  PlanItem,
  RequestItem,
  SessionView,
  TerminalView,
  ToolCallItem,
  TurnView,
  ViewItem,
} from "sandboxagent";

import { Diff } from "./diff.js";
import { UNSEEN, textFor, visible } from "./visible.js";

/** How parts of a session are shown. */
export interface MessagesProps {
  /** The session, as `useSession` gives it. */
  readonly view: SessionView;
  /** Shows the text of a message, such as Markdown; without it, it is plain text. */
  readonly renderText?: (text: string) => ReactNode;
  /** Shows an item in your own way; undefined leaves it to the component. */
  readonly renderItem?: (item: ViewItem, turn: TurnView) => ReactNode | undefined;
  /** A class of your own. */
  readonly className?: string;
}

/** All messages, tool calls and facts of a session, oldest first. Items have `data-type`, turns `data-state`. */
export function Messages({ view, renderText, renderItem, className = "" }: MessagesProps): ReactNode {
  return (
    <div role="log" aria-label="Messages" aria-busy={view.status === "running"} className={`sa-messages ${className}`}>
      {view.turns.map((turn) => (
        <div key={turn.key} className="sa-turn" data-state={turn.state}>
          {turn.items.map((item) => (
            <div key={item.key} className="sa-item" data-type={item.type}>
              {renderItem?.(item, turn) ?? <Item item={item} view={view} renderText={renderText ?? plain} />}
            </div>
          ))}
          {turn.state === "cancelled" && <p className="sa-turn-end">Stopped</p>}
        </div>
      ))}
    </div>
  );
}

const plain = (text: string): ReactNode => <span className="sa-text">{text}</span>;

interface ItemProps {
  readonly item: ViewItem;
  readonly view: SessionView;
  readonly renderText: (text: string) => ReactNode;
}

function Item({ item, view, renderText }: ItemProps): ReactNode {
  switch (item.type) {
    case "user":
      return (
        <article aria-label="Prompt">
          {item.blocks.map((block, index) => (
            <Block key={index} block={block} renderText={plain} />
          ))}
          {item.attachments.map(({ path, filename }) => (
            <span key={path} className="sa-attachment">
              {visible(filename ?? path)}
            </span>
          ))}
        </article>
      );
    case "text":
      return <article aria-label="Answer">{renderText(item.text)}</article>;
    case "thought":
      return (
        <details>
          <summary>Thought</summary>
          {plain(item.text)}
        </details>
      );
    case "content":
      return <Block block={item.block} renderText={renderText} />;
    case "tool":
      return <ToolCall call={item} terminals={view.terminals} />;
    case "plan":
      return <Plan entries={item.entries} />;
    case "request":
      return <RequestLine request={item} />;
    case "failure":
      return (
        <div role="alert">
          {visible(item.message)}
          {item.stderr && <pre>{visible([...item.stderr.head, ...item.stderr.tail].join("\n"))}</pre>}
        </div>
      );
    case "notice":
      return <p>{visible(item.text)}</p>;
    case "gap":
      return (
        <p role="note">
          Events from {item.after + 1} to {item.resumesAt - 1} are missing here.
        </p>
      );
  }
}

/** What a tool call shows. */
export interface ToolCallProps {
  /** The tool call, an item of a view. */
  readonly call: ToolCallItem;
  /** The view's terminals, for commands. */
  readonly terminals?: SessionView["terminals"];
  /** A class of your own. */
  readonly className?: string;
}

/** An action of the agent, with its texts, diffs and commands. It has `data-status` and `data-kind`. */
export function ToolCall({ call, terminals = {}, className = "" }: ToolCallProps): ReactNode {
  const isStopped = call.endedAt !== undefined && (call.status === "pending" || call.status === "in_progress");
  const status = isStopped ? "stopped" : call.status;
  return (
    <section
      aria-label={`Tool call: ${call.title}`}
      className={`sa-tool ${className}`}
      data-status={status}
      data-kind={call.kind}
    >
      <header>
        <span className="sa-tool-title">{visible(call.title || call.kind)}</span>{" "}
        <span className="sa-tool-status">{status.replace("_", " ")}</span>
      </header>
      <ToolContent content={call.content} terminals={terminals} />
    </section>
  );
}

interface ToolContentProps {
  readonly content: ToolCallItem["content"];
  readonly terminals: SessionView["terminals"];
}

/** The texts, diffs and commands of a tool call. */
export function ToolContent({ content, terminals }: ToolContentProps): ReactNode {
  return content.map((part, index) => {
    switch (part.type) {
      case "diff":
        return <Diff key={index} path={part.path} oldText={part.oldText} newText={part.newText} />;
      case "content":
        return <Block key={index} block={part.content} renderText={plain} />;
      case "terminal":
        return <Terminal key={index} terminal={terminals[part.terminalId]} />;
      default:
        return null;
    }
  });
}

function Terminal({ terminal }: { readonly terminal: TerminalView | undefined }): ReactNode {
  if (terminal === undefined) return null;
  const command = [terminal.command, ...terminal.args].join(" ");
  return (
    <pre className="sa-terminal" tabIndex={0} aria-label={`Output of ${command}`}>
      {visible(`$ ${command}\n${terminal.output}`)}
    </pre>
  );
}

/** What a plan shows. */
export interface PlanProps {
  /** The steps: `view.plan`, or those of an item. */
  readonly entries: PlanItem["entries"];
  /** A class of your own. */
  readonly className?: string;
}

/** The agent's plan, a list of steps. Each has `data-status`. */
export function Plan({ entries, className = "" }: PlanProps): ReactNode {
  return (
    <ol className={`sa-plan ${className}`} aria-label="Plan">
      {entries.map(({ content, status }, index) => (
        <li key={index} data-status={status}>
          {visible(String(content))} <span style={UNSEEN}>({String(status).replace("_", " ")})</span>
        </li>
      ))}
    </ol>
  );
}

function RequestLine({ request }: { readonly request: RequestItem }): ReactNode {
  const { decision } = request;
  const options = request.kind === "permission" ? request.options : [];
  const chosen = options.find(({ optionId }) => optionId === decision?.optionId)?.name;
  const outcome = chosen ?? decision?.outcome ?? "waits for an answer";
  return (
    <p className="sa-decision" data-kind={request.kind} data-outcome={decision?.outcome ?? "open"}>
      {visible(aboutOf(request))}: <strong>{visible(String(outcome))}</strong>
      {decision?.reason && ` (${visible(decision.reason)})`}
    </p>
  );
}

function aboutOf(request: RequestItem): string {
  switch (request.kind) {
    case "permission":
      return request.toolCall.title ?? "Permission";
    case "question":
      return request.prompt;
    case "elicitation":
      return request.message;
  }
}

interface BlockProps {
  readonly block: ContentBlock;
  readonly renderText: (text: string) => ReactNode;
}

function Block({ block, renderText }: BlockProps): ReactNode {
  switch (block.type) {
    case "text":
      return renderText(textFor(block.text));
    case "image":
      return IMAGES.test(block.mimeType) ? (
        <img alt="From the agent" src={`data:${block.mimeType};base64,${block.data}`} />
      ) : null;
    case "resource_link":
      return <span className="sa-link">{visible(block.title ?? block.name)}</span>;
    case "resource":
      return <pre className="sa-resource">{textFor("text" in block.resource ? block.resource.text : "")}</pre>;
    default:
      return null;
  }
}

/** Pictures that cannot run anything. */
const IMAGES = /^image\/(png|jpeg|gif|webp)$/;
