/** One field to go anywhere and do anything: sessions, pages, and what can be done here. */

import { CornerDownLeft, Search } from "lucide-react";
import { type KeyboardEvent, type ReactNode, useDeferredValue, useEffect, useMemo, useRef, useState } from "react";

import { Kbd, StateDot, Words } from "../design/index.js";
import { go } from "../router.js";
import { stateOf, titleOf, useInventory } from "../server/index.js";
import { spelledOut } from "../text/visible.js";
import { useOffered } from "./commands.js";
import { type Choice, aboutSession, choicesFor } from "./found.js";
import styles from "./palette.module.css";

export function Palette({ onClose }: { readonly onClose: () => void }): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const shown = useDeferredValue(text);
  const { sessions } = useInventory();
  const commands = useOffered();
  const choices = useMemo(() => choicesFor(shown, commands, sessions), [shown, commands, sessions]);
  const current = Math.min(at, choices.length - 1);
  useEffect(() => {
    const opened = dialog.current;
    if (opened && !opened.open) opened.showModal();
    return () => opened?.close();
  }, []);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [current, choices]);
  const choose = (choice: Choice | undefined): void => {
    if (choice === undefined) return;
    // First, so that what is chosen may open a window of its own, and take the focus.
    dialog.current?.close();
    onClose();
    if (choice.kind === "session") go({ room: "session", id: choice.session.sessionId });
    else choice.command.run();
  };
  const press = (event: KeyboardEvent): void => {
    if (event.nativeEvent.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) setAt((current + step + choices.length) % Math.max(1, choices.length));
    else if (event.key === "Enter") choose(choices[current]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog
      ref={dialog}
      className={styles.palette}
      aria-label="Go to"
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <div className={styles.inside}>
        <label className={styles.field}>
          <Search aria-hidden />
          <input
            role="combobox"
            aria-label="Find a session, a page or an action"
            aria-expanded
            aria-controls="palette-choices"
            aria-activedescendant={current >= 0 ? `palette-${current}` : undefined}
            placeholder="Find a session, a page or an action"
            autoFocus
            spellCheck={false}
            autoComplete="off"
            value={text}
            onChange={(event) => {
              setText(event.target.value);
              setAt(0);
            }}
            onKeyDown={press}
          />
          <Kbd>Esc</Kbd>
        </label>
        <ul ref={list} id="palette-choices" role="listbox" aria-label="Results" className={styles.choices}>
          {choices.map((choice, index) => (
            <li
              key={choice.key}
              id={`palette-${index}`}
              role="option"
              aria-selected={index === current}
              className={styles.choice}
              data-danger={(choice.kind === "command" && choice.command.danger) || undefined}
              onPointerMove={() => setAt(index)}
              onClick={() => choose(choice)}
            >
              <ChoiceView choice={choice} />
              {index === current && <CornerDownLeft aria-hidden className={styles.enter} />}
            </li>
          ))}
        </ul>
        {choices.length === 0 && <p className={styles.none}>Nothing matches</p>}
      </div>
    </dialog>
  );
}

function ChoiceView({ choice }: { readonly choice: Choice }): ReactNode {
  if (choice.kind === "command") {
    return (
      <>
        <span className={styles.icon}>{choice.command.icon}</span>
        <span className={styles.label}>{choice.command.label}</span>
      </>
    );
  }
  const { session } = choice;
  return (
    <>
      <span className={styles.icon}>
        <StateDot state={stateOf(session)} />
      </span>
      <Words name={spelledOut(titleOf(session), "prose")} about={spelledOut(aboutSession(session), "prose")} />
    </>
  );
}
