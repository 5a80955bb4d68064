/** Slash commands to choose from. */

import type { AvailableCommand } from "@agentclientprotocol/sdk";
import { useEffect, useRef, type ReactNode } from "react";

import { SafeText } from "../text/safe-text.js";

interface CommandListProps {
  readonly commands: readonly AvailableCommand[];
  readonly chosen: number;
  readonly choose: (index: number) => void;
}

export function CommandList({ commands, chosen, choose }: CommandListProps): ReactNode {
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => list.current?.children[chosen]?.scrollIntoView?.({ block: "nearest" }), [chosen]);
  return (
    <ul ref={list} id="composer-commands" className="composer-commands" role="listbox" aria-label="Commands">
      {commands.map((command, index) => (
        <li
          key={command.name}
          id={`composer-command-${index}`}
          role="option"
          aria-selected={index === chosen}
          // Before the field loses the focus.
          onMouseDown={(event) => {
            event.preventDefault();
            choose(index);
          }}
        >
          <code>
            /<SafeText text={command.name} limit={60} />
          </code>
          {command.input?.hint && (
            <span className="composer-command-hint">
              <SafeText text={command.input.hint} as="prose" limit={60} />
            </span>
          )}
          <span className="composer-command-words">
            <SafeText text={command.description ?? ""} as="prose" limit={200} />
          </span>
        </li>
      ))}
    </ul>
  );
}
