/** A permission: what will be done, and the agent's options. */

import { useMemo, useRef, useState, type FormEvent, type ReactNode } from "react";

import type { PermissionItem, ToolCallItem } from "sandboxagent";
import { Button, Input, Kbd } from "../design/index.js";
import { SafeText } from "../text/safe-text.js";
import { ActionView } from "./action-view.js";
import { type Action, actionOf } from "./action.js";
import { useAnswerKeys } from "./answer-keys.js";
import type { Answer } from "./answering.js";

export interface AnswerProps<T> {
  readonly asked: T;
  readonly busy: boolean;
  readonly answer: (answer: Answer) => void;
  readonly keys: boolean;
  readonly compact: boolean;
}

interface PermissionAnswerProps extends AnswerProps<PermissionItem> {
  readonly tool: ToolCallItem | undefined;
}

/** More options than keys could choose from are still shown. */
const MAX_OPTIONS = 40;

export function PermissionAnswer({ asked, tool, busy, answer, keys, compact }: PermissionAnswerProps): ReactNode {
  const action = useMemo(() => actionOf(asked.toolCall, tool && knownOf(tool)), [asked.toolCall, tool]);
  const isChanged = useIsChanged(action, asked.key);
  const [explaining, setExplaining] = useState(false);
  const options = asked.options.slice(0, MAX_OPTIONS);
  const only = (kind: string): string | undefined => {
    const [first, ...others] = options.filter((option) => option.kind === kind);
    return others.length === 0 ? first?.optionId : undefined;
  };
  const choose = (optionId: string | undefined): boolean => {
    if (optionId !== undefined) answer({ type: "option", optionId });
    return optionId !== undefined;
  };
  useAnswerKeys(keys && !busy && !explaining, (key) => {
    if (key === "a") return choose(only("allow_once"));
    if (key === "r") {
      answer({ type: "reject" });
      return true;
    }
    return /^[1-9]$/.test(key) && choose(options[Number(key) - 1]?.optionId);
  });
  return (
    <>
      <div className="request-body">
        {isChanged && <p className="request-warning">The agent has changed this after it asked. Read it again.</p>}
        <ActionView action={action} rows={compact ? 8 : 14} />
      </div>
      {explaining ? (
        <Explanation
          busy={busy}
          cancel={() => setExplaining(false)}
          reject={(reason) => answer({ type: "reject", ...(reason && { reason }) })}
        />
      ) : (
        <div className="request-options" role="group" aria-label="Answer">
          {options.map((option, index) => (
            <Button
              key={`${option.optionId}-${index}`}
              look={option.kind === "allow_once" ? "primary" : option.kind?.startsWith("reject") ? "danger" : "plain"}
              size={compact ? "small" : "normal"}
              disabled={busy}
              onClick={() => choose(option.optionId)}
              data-option={option.kind}
            >
              <SafeText text={String(option.name || option.optionId)} limit={120} />
              {keys && index < 9 && <Kbd>{index + 1}</Kbd>}
            </Button>
          ))}
          {!options.some(({ kind }) => kind?.startsWith("reject")) && (
            <Button
              look="danger"
              size={compact ? "small" : "normal"}
              disabled={busy}
              onClick={() => answer({ type: "reject" })}
            >
              Reject
            </Button>
          )}
          <Button look="quiet" size={compact ? "small" : "normal"} disabled={busy} onClick={() => setExplaining(true)}>
            Reject with a reason…
          </Button>
          {keys && (
            <span className="request-hint" aria-hidden>
              <Kbd>A</Kbd> allow <Kbd>R</Kbd> reject
            </span>
          )}
        </div>
      )}
    </>
  );
}

function Explanation({
  busy,
  cancel,
  reject,
}: {
  busy: boolean;
  cancel: () => void;
  reject: (reason: string) => void;
}): ReactNode {
  const [reason, setReason] = useState("");
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    reject(reason.trim());
  };
  return (
    <form className="request-options" onSubmit={submit} onKeyDown={(event) => event.key === "Escape" && cancel()}>
      <Input
        autoFocus
        className="request-reason"
        aria-label="Reason"
        placeholder="What the agent should do instead"
        maxLength={4_096}
        value={reason}
        onChange={(event) => setReason(event.target.value)}
      />
      <Button type="submit" look="danger" busy={busy}>
        Reject
      </Button>
      <Button look="quiet" onClick={cancel}>
        Back
      </Button>
    </form>
  );
}

function knownOf({ toolCallId, title, kind, content, locations, rawInput }: ToolCallItem): Parameters<typeof actionOf>[1] {
  return { toolCallId, title, kind, content: [...content], locations: [...locations], rawInput };
}

/** Whether what is asked for is no longer what the card showed at first. */
function useIsChanged(action: Action, key: string): boolean {
  const first = useRef<{ key: string; said: string }>(undefined);
  const said = JSON.stringify([action.command, action.diffs, action.inputs, action.paths]);
  if (first.current?.key !== key) first.current = { key, said };
  return first.current.said !== said;
}
