/** What can be done with a session, in its menu and in the palette. */

import { ArrowDownToLine, Copy, EllipsisVertical, GitFork, Link2, Pencil, PowerOff, Trash2 } from "lucide-react";
import { type FormEvent, type ReactNode, useState } from "react";
import type { SandboxAgent, SessionInfo } from "sandboxagent";

import { type Command, useOffer } from "../commands/commands.js";
import { focusComposer } from "../composer/focus.js";
import { Button, Dialog, Field, Input, Menu, MenuItem, copy, toast, wordsOf } from "../design/index.js";
import { download } from "../envelopes/download.js";
import { useSessionLog } from "../log/hooks.js";
import { go } from "../router.js";
import { useServer } from "../server/index.js";

type Asking = "rename" | "end" | "delete";

export function Actions({ session }: { readonly session: SessionInfo }): ReactNode {
  const { client } = useServer();
  const [asking, setAsking] = useState<Asking>();
  const { sessionId } = session;
  const log = useSessionLog(sessionId);
  const run = async (work: (client: SandboxAgent) => Promise<unknown>): Promise<void> => {
    try {
      await work(client);
    } catch (error) {
      toast(wordsOf(error), "bad");
    }
  };
  const fork = async ({ sessions }: SandboxAgent): Promise<void> => {
    const { id } = await sessions.fork(sessionId);
    focusComposer(id);
    go({ room: "session", id });
  };
  const actions: readonly Command[] = [
    { label: "Rename session…", icon: <Pencil aria-hidden />, run: () => setAsking("rename") },
    {
      label: "Copy link to session",
      icon: <Link2 aria-hidden />,
      run: () => void copy(linkHere(), "Link copied; it has no token in it"),
    },
    { label: "Copy session id", icon: <Copy aria-hidden />, run: () => void copy(sessionId, "Session id copied") },
    { label: "Export session", icon: <ArrowDownToLine aria-hidden />, run: () => void download(log) },
    { label: "Fork session", icon: <GitFork aria-hidden />, run: () => void run(fork) },
    {
      label: "End session…",
      icon: <PowerOff aria-hidden />,
      disabled: session.ended && !session.resumable,
      run: () => setAsking("end"),
    },
    { label: "Delete session…", icon: <Trash2 aria-hidden />, danger: true, run: () => setAsking("delete") },
  ];
  useOffer(actions);
  const close = (): void => setAsking(undefined);
  return (
    <>
      <Menu label="Actions of the session" icon={<EllipsisVertical aria-hidden />}>
        {actions.map(({ label, icon, danger, disabled, run: act }) => (
          <MenuItem key={label} danger={danger ?? false} disabled={disabled ?? false} onSelect={act}>
            {icon} {label}
          </MenuItem>
        ))}
      </Menu>
      {asking === "rename" && <Rename session={session} onClose={close} />}
      {(asking === "end" || asking === "delete") && (
        <Confirm
          what={asking}
          onClose={close}
          onConfirm={() =>
            void run(async ({ sessions }) => {
              await (asking === "end" ? sessions.terminate(sessionId) : sessions.delete(sessionId));
              if (asking === "delete") go({ room: "mission" });
            })
          }
        />
      )}
    </>
  );
}

/** The address of what is shown, with its tab and its moment. */
function linkHere(): string {
  const { origin, pathname, search } = window.location;
  return origin + pathname + search;
}

interface AskingProps {
  readonly onClose: () => void;
}

function Rename({ session, onClose }: AskingProps & { readonly session: SessionInfo }): ReactNode {
  const { client } = useServer();
  const [title, setTitle] = useState(session.title ?? "");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      const attached = await client.sessions.attach(session.sessionId);
      await attached.setMetadata({ title: title.trim() || null });
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <Dialog
      title="Rename session"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" type="submit" form="rename" busy={busy}>
            Rename
          </Button>
        </>
      }
    >
      <form id="rename" onSubmit={(event) => void submit(event)}>
        <Field
          label="Title"
          hint="The agent may give it another one later."
          error={error === undefined ? undefined : wordsOf(error)}
        >
          {(given) => (
            <Input
              {...given}
              maxLength={200}
              value={title}
              onFocus={(event) => event.target.select()}
              onChange={(event) => setTitle(event.target.value)}
            />
          )}
        </Field>
      </form>
    </Dialog>
  );
}

const CONFIRM = {
  end: {
    title: "End this session?",
    text: "A turn that runs is cut off, and the session cannot be resumed. Its log stays.",
    word: "End session",
  },
  delete: {
    title: "Delete this session?",
    text: "The session and its log are gone then, at the agent as well. This cannot be undone.",
    word: "Delete session",
  },
} as const;

interface ConfirmProps extends AskingProps {
  readonly what: keyof typeof CONFIRM;
  readonly onConfirm: () => void;
}

function Confirm({ what, onClose, onConfirm }: ConfirmProps): ReactNode {
  const { title, text, word } = CONFIRM[what];
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            look="danger"
            onClick={() => {
              onClose();
              onConfirm();
            }}
          >
            {word}
          </Button>
        </>
      }
    >
      {text}
    </Dialog>
  );
}
