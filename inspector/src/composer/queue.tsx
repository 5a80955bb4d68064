/** Prompts that wait for the turns before them, and those on their way to the server. */

import { Clock, X } from "lucide-react";
import type { ReactNode } from "react";
import type { SessionView, Turn } from "sandboxagent";

import { IconButton } from "../design/index.js";
import { wordsIn } from "../chat/written.js";
import { SafeText } from "../text/safe-text.js";

/** A prompt of this page's that has not ended. */
export interface Sending {
  readonly turn: Turn;
  readonly text: string;
}

interface QueueProps {
  readonly view: SessionView;
  readonly sending: readonly Sending[];
  readonly takeBack: (turn: Turn) => void;
}

export function Queue({ view, sending, takeBack }: QueueProps): ReactNode {
  const known = new Set([...view.queue.map(({ promptId }) => promptId), ...view.turns.map(({ promptId }) => promptId)]);
  const unheard = sending.filter(({ turn }) => !known.has(turn.promptId));
  if (view.queue.length === 0 && unheard.length === 0) return null;
  return (
    <ul className="queue" aria-label="Queued prompts">
      {[
        ...view.queue.map((prompt) => {
          const mine = sending.find(({ turn }) => turn.promptId === prompt.promptId);
          return (
            <QueueRow
              // What was on its way keeps its row when the server has it: the focus, or a click, may be there.
              key={mine?.turn.promptId ?? prompt.key}
              word="Queued"
              text={wordsIn(prompt)}
              files={prompt.attachments.length}
              remove={mine && (() => takeBack(mine.turn))}
            />
          );
        }),
        ...unheard.map(({ turn, text }) => (
          <QueueRow key={turn.promptId} word="Sending" text={text} files={0} remove={() => takeBack(turn)} />
        )),
      ]}
    </ul>
  );
}

interface QueueRowProps {
  readonly word: string;
  readonly text: string;
  readonly files: number;
  readonly remove: (() => void) | undefined;
}

function QueueRow({ word, text, files, remove }: QueueRowProps): ReactNode {
  return (
    <li className="queue-row">
      <Clock aria-hidden size={14} />
      <span className="queue-word">{word}</span>
      <span className="queue-text">
        <SafeText text={text} as="prose" limit={300} />
      </span>
      {files > 0 && <span className="queue-files">{files === 1 ? "1 file" : `${files} files`}</span>}
      {remove && (
        <IconButton label="Remove from the queue" size="small" onClick={remove}>
          <X aria-hidden />
        </IconButton>
      )}
    </li>
  );
}
