/** Where a person writes to an agent: a prompt with files, sent now or queued; and the ways to stop and to steer. */

import { ArrowUp, Paperclip, Square } from "lucide-react";
import {
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
  type ChangeEvent,
  type ClipboardEvent,
  type KeyboardEvent,
  type ReactNode,
} from "react";
import type { Session, SessionView, Turn } from "sandboxagent";

import { ErrorNote, IconButton, toast, wordsOf } from "../design/index.js";
import { Choices } from "./choices.js";
import { CommandList } from "./command-list.js";
import { completed, matching } from "./commands.js";
import { type Draft, EMPTY, keepDraft, readDraft } from "./drafts.js";
import { Queue, type Sending } from "./queue.js";
import { AttachedFiles, useAttaching, type Attaching } from "./attached-files.js";
import { takeFocus } from "./focus.js";
import { useHistory } from "./history.js";
import { UsageView } from "./usage.js";

import "./composer.css";

export interface ComposerProps {
  readonly sessionId: string;
  /** Undefined until this client is attached to it. */
  readonly session: Session | undefined;
  readonly view: SessionView;
  /** Why nothing can be sent, for a session that is over for good. */
  readonly closed?: string | undefined;
  /** Files that were dropped on the room around it. */
  readonly dropped: Dropped;
}

/** Takes files that were dropped elsewhere. */
export interface Dropped {
  take: ((files: readonly File[]) => void) | undefined;
}

export function Composer({ sessionId, session, view, closed, dropped }: ComposerProps): ReactNode {
  const [draft, setDraft] = useState<Draft>(() => readDraft(sessionId));
  const [sending, setSending] = useState<readonly Sending[]>([]);
  const [failure, setFailure] = useState<unknown>();
  const field = useRef<HTMLTextAreaElement>(null);
  const attaching = useAttaching(session?.files, draft.attachments, (attachments) =>
    setDraft((now) => ({ ...now, attachments })),
  );
  useEffect(() => keepDraft(sessionId, draft), [sessionId, draft]);
  useGrowing(field, draft.text);
  useSlash(field);
  useEffect(() => {
    if (takeFocus(sessionId)) field.current?.focus();
  }, [sessionId]);
  useEffect(() => {
    dropped.take = attaching.add;
  });
  const running = view.status === "running" || view.status === "waiting";
  const text = draft.text.trim();
  const isWritten = closed === undefined && (text !== "" || draft.attachments.length > 0 || attaching.isBusy);
  /** The person has sent it, and something has to come first: this client's attachment, or a file on its way. */
  const [isDue, setDue] = useState(false);

  const send = (): void => {
    if (!isWritten) return;
    if (session === undefined || attaching.isBusy) {
      setDue(true);
      return;
    }
    setDue(false);
    const attachments = draft.attachments.map(({ path, name }) => ({ path, filename: name }));
    const turn = session.prompt(text, attachments.length > 0 ? { attachments } : {});
    const sent = draft;
    setDraft(EMPTY);
    setFailure(undefined);
    setSending((now) => [...now, { turn, text }]);
    turn
      .then(
        () => undefined,
        (error: unknown) => {
          // What has begun is in the transcript, with how it failed.
          if (turn.turnId !== undefined) return;
          setFailure(error);
          setDraft((now) => (now === EMPTY ? sent : now));
        },
      )
      .finally(() => setSending((now) => now.filter((each) => each.turn !== turn)));
  };
  useEffect(() => {
    if (isDue && session !== undefined && !attaching.isBusy) send();
  }, [isDue, session, attaching.isBusy]);
  const stop = (): void => {
    session?.cancel().catch((error: unknown) => toast(wordsOf(error), "bad"));
  };

  return (
    <div className="composer">
      <Queue view={view} sending={sending} takeBack={takeBack} />
      {failure !== undefined && <ErrorNote title="Could not send the prompt" error={failure} />}
      {closed !== undefined ? (
        <p className="composer-closed">{closed}</p>
      ) : (
        <div className="composer-box">
          <AttachedFiles attaching={attaching} />
          <Writing
            field={field}
            draft={draft.text}
            setText={(next) => setDraft((now) => ({ ...now, text: next }))}
            view={view}
            send={send}
            running={running}
            attaching={attaching}
          />
          <div className="composer-bar">
            <div className="composer-choices">
              <AttachButton add={attaching.add} disabled={session === undefined} />
              <Choices session={session} view={view} />
            </div>
            <UsageView usage={view.usage} />
            {running && (
              <IconButton label="Stop the turn" look="danger" onClick={stop} data-action="stop">
                <Square aria-hidden fill="currentColor" className="composer-stop" />
              </IconButton>
            )}
            {(!running || isWritten) && (
              <IconButton
                label={running ? "Add to the queue" : "Send"}
                look="primary"
                disabled={!isWritten}
                busy={isDue}
                onClick={send}
                data-action="send"
              >
                <ArrowUp aria-hidden />
              </IconButton>
            )}
          </div>
        </div>
      )}
    </div>
  );
}

function takeBack(turn: Turn): void {
  turn.cancel().catch((error: unknown) => toast(wordsOf(error), "bad"));
}

interface WritingProps {
  readonly field: React.RefObject<HTMLTextAreaElement | null>;
  readonly draft: string;
  readonly setText: (text: string) => void;
  readonly view: SessionView;
  readonly send: () => void;
  readonly running: boolean;
  readonly attaching: Attaching;
}

function Writing({ field, draft, setText, view, send, running, attaching }: WritingProps): ReactNode {
  const [caret, setCaret] = useState(draft.length);
  const [chosen, setChosen] = useState(0);
  const [dismissed, setDismissed] = useState("");
  const history = useHistory(view, draft, setText);
  const found = draft === dismissed ? undefined : matching(draft, caret, view.commands);
  const complete = (index: number): void => {
    const command = found?.[index];
    if (command === undefined) return;
    const next = completed(draft, caret, command);
    setText(next);
    setDismissed(next);
    field.current?.focus();
  };
  const inList = (event: KeyboardEvent): boolean => {
    if (found === undefined) return false;
    if (event.key === "ArrowDown") setChosen((chosen + 1) % found.length);
    else if (event.key === "ArrowUp") setChosen((chosen + found.length - 1) % found.length);
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey))
      complete(Math.min(chosen, found.length - 1));
    else if (event.key === "Escape") setDismissed(draft);
    else return false;
    return true;
  };
  const pressed = (event: KeyboardEvent<HTMLTextAreaElement>): void => {
    // Enter that ends a composition of characters is not Enter.
    if (event.nativeEvent.isComposing || event.keyCode === 229) return;
    if (inList(event) || history(event)) {
      event.preventDefault();
    } else if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") {
      // Out of the field, where keys answer what waits. It stops nothing, and what was written stays.
      event.preventDefault();
      event.currentTarget.blur();
    }
  };
  const pasted = (event: ClipboardEvent): void => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    attaching.add(files);
  };
  const changed = (event: ChangeEvent<HTMLTextAreaElement>): void => {
    setText(event.target.value);
    setCaret(event.target.selectionStart);
    setChosen(0);
    setDismissed("");
  };
  return (
    <div className="composer-writing">
      {found && <CommandList commands={found} chosen={Math.min(chosen, found.length - 1)} choose={complete} />}
      <textarea
        ref={field}
        className="composer-field"
        rows={1}
        value={draft}
        dir="auto"
        placeholder={running ? "Add to the queue; it runs after this turn" : "Message the agent"}
        aria-label="Prompt"
        aria-keyshortcuts="/"
        role={found ? "combobox" : undefined}
        aria-expanded={found ? true : undefined}
        aria-controls={found ? "composer-commands" : undefined}
        aria-activedescendant={found ? `composer-command-${Math.min(chosen, found.length - 1)}` : undefined}
        onChange={changed}
        onKeyDown={pressed}
        onSelect={(event) => setCaret(event.currentTarget.selectionStart)}
        onPaste={pasted}
      />
    </div>
  );
}

function AttachButton({
  add,
  disabled,
}: {
  readonly add: (files: readonly File[]) => void;
  readonly disabled: boolean;
}): ReactNode {
  const input = useRef<HTMLInputElement>(null);
  const chosen = (event: ChangeEvent<HTMLInputElement>): void => {
    add([...(event.target.files ?? [])]);
    // The same file can be chosen again.
    event.target.value = "";
  };
  return (
    <>
      <IconButton label="Attach files" disabled={disabled} onClick={() => input.current?.click()}>
        <Paperclip aria-hidden />
      </IconButton>
      <input ref={input} type="file" multiple hidden aria-label="Files to attach" onChange={chosen} />
    </>
  );
}

/** The slash goes to the composer from anywhere, as it does to the search of many pages. */
function useSlash(field: React.RefObject<HTMLTextAreaElement | null>): void {
  useEffect(() => {
    const pressed = (event: globalThis.KeyboardEvent): void => {
      const target = event.target as HTMLElement | null;
      const isTyping = target?.matches("input, textarea, select, [contenteditable]") ?? false;
      if (event.key !== "/" || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping)
        return;
      if (document.querySelector("dialog[open]")) return;
      event.preventDefault();
      field.current?.focus();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [field]);
}

/** As high as its text, up to what the style sheet allows. */
function useGrowing(field: React.RefObject<HTMLTextAreaElement | null>, text: string): void {
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [field, text]);
}
