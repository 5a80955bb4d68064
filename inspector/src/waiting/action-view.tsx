/** What an agent wants to do: the command and the changes as they are, and apart from them what the agent says of it. */

import { memo, type ReactNode } from "react";

import { CopyButton } from "../text/copy-button.js";
import { Diff } from "../text/diff.js";
import { Markdown } from "../text/markdown.js";
import { SafeText } from "../text/safe-text.js";
import type { Action } from "./action.js";

import "./waiting.css";

/** Longer values, and those of several lines, are what a change is made of. */
const SHORT = 160;

export interface ActionViewProps {
  readonly action: Action;
  /** How many rows a difference may take before it scrolls. */
  readonly rows?: number;
}

/** All of what will be done. Nothing is folded away, except for arguments that a change beside them shows already. */
export const ActionView = memo(function ActionView({ action, rows = 14 }: ActionViewProps): ReactNode {
  const { command, diffs, texts, paths, inputs, title } = action;
  const others = paths.filter((path) => !diffs.some((diff) => diff.path === path));
  const [folded, open] = [
    inputs.filter(({ value }) => isShown(value, diffs)),
    inputs.filter(({ value }) => !isShown(value, diffs)),
  ];
  return (
    <div className="action">
      {title !== "" && title !== command && (
        <p className="action-title">
          <SafeText text={title} as="exact" limit={600} />
        </p>
      )}
      {command !== undefined && <Command text={command} />}
      {diffs.map((diff, index) => (
        <Diff key={index} {...diff} rows={rows} />
      ))}
      {others.length > 0 && (
        <ul className="action-paths" aria-label="Files">
          {others.slice(0, 20).map((path, index) => (
            <li key={index}>
              <SafeText text={path} limit={1_000} />
            </li>
          ))}
          {others.length > 20 && <li>{others.length - 20} more</li>}
        </ul>
      )}
      {open.length > 0 && <Inputs inputs={open} />}
      {folded.length > 0 && (
        <details className="action-more">
          <summary>Raw arguments</summary>
          <Inputs inputs={folded} />
        </details>
      )}
      {texts.length > 0 && (
        <div className="action-says">
          <span className="action-label">The agent says</span>
          {texts.map((text, index) => (
            <Markdown key={index} text={text} />
          ))}
        </div>
      )}
      {!action.isToldInFull && command === undefined && diffs.length === 0 && (
        <p className="action-untold">
          The agent does not say what it passes to its tool. The line above is its own description.
        </p>
      )}
    </div>
  );
});

/** Whether a change shows an argument: its file, its texts, or a text that it is made of. */
function isShown(value: string, diffs: Action["diffs"]): boolean {
  if (diffs.length > 0 && (value.length > SHORT || value.includes("\n"))) return true;
  return diffs.some(({ path, before, after }) => path === value || before === value || after === value);
}

/** A command, character by character as it will be run. */
export function Command({ text }: { readonly text: string }): ReactNode {
  const lines = text.split("\n").length;
  return (
    <div className="command">
      <div className="command-head">
        <span className="action-label">Will run{lines > 1 && `, ${lines} lines`}</span>
        <CopyButton text={text} label="Copy the command" />
      </div>
      <pre className="command-text" tabIndex={0} aria-label="command" dir="ltr">
        <SafeText text={text} limit={50_000} />
      </pre>
    </div>
  );
}

function Inputs({ inputs }: { readonly inputs: Action["inputs"] }): ReactNode {
  return (
    <dl className="action-inputs">
      {inputs.map(({ name, value }, index) => (
        <div key={index} className="action-input">
          <dt>
            <SafeText text={name} limit={200} />
          </dt>
          <dd>
            <SafeText text={value} limit={5_000} />
          </dd>
        </div>
      ))}
    </dl>
  );
}
