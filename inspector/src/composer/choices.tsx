/** Mode, model and the other options of a session, to look at and to change. */

import type { SessionConfigOption, SessionModeState } from "@agentclientprotocol/sdk";
import { ChevronDown } from "lucide-react";
import { useEffect, useState, type ReactNode } from "react";
import type { Modes, Session, SessionView } from "sandboxagent";

import { toast, wordsOf } from "../design/index.js";
import { ValueList } from "../options/value-list.js";
import { type OptionValue, typed, valuesOf } from "../options/values.js";
import { spelledOut } from "../text/visible.js";

interface Choice {
  readonly id: string;
  readonly name: string;
  readonly description: string | undefined;
  readonly current: string;
  /** Whether its values say what it is about, as modes and models do. */
  readonly isPlain: boolean;
  readonly values: readonly OptionValue[];
  readonly set: (value: string) => Promise<unknown>;
}

/** Selects for everything that can be chosen; nothing when there is nothing to choose. */
export function Choices({
  session,
  view,
}: {
  readonly session: Session | undefined;
  readonly view: SessionView;
}): ReactNode {
  const choices = useChoices(session, view);
  return choices.map((choice) => <ChoiceSelect key={choice.id} choice={choice} isFixed={session === undefined} />);
}

function ChoiceSelect({ choice, isFixed }: { readonly choice: Choice; readonly isFixed: boolean }): ReactNode {
  // What was chosen, until the agent has confirmed or refused it.
  const [wanted, setWanted] = useState<string>();
  const change = (value: string): void => {
    setWanted(value);
    choice
      .set(value)
      .catch((error: unknown) => toast(wordsOf(error), "bad"))
      .finally(() => setWanted(undefined));
  };
  const current = wanted ?? choice.current;
  return (
    <label
      className="composer-choice"
      title={spelledOut(choice.description ? `${choice.name}: ${choice.description}` : choice.name, "prose")}
    >
      <span className={choice.isPlain ? "unseen" : "composer-choice-name"}>{spelledOut(choice.name, "prose")}</span>
      <select
        value={current}
        disabled={isFixed || wanted !== undefined}
        onChange={(event) => change(event.target.value)}
        data-choice={choice.id}
      >
        {!choice.values.some(({ value }) => value === current) && <option value={current}>{current}</option>}
        <ValueList values={choice.values} />
      </select>
      <ChevronDown aria-hidden size={12} />
    </label>
  );
}

function useChoices(session: Session | undefined, view: SessionView): readonly Choice[] {
  const [offered, setOffered] = useState<{
    modes: Modes | SessionModeState | undefined;
    options: readonly SessionConfigOption[];
  }>();
  useEffect(() => {
    if (session === undefined) return undefined;
    let current = true;
    // The SDK has what the server adds where an agent leaves something out; the log has not.
    session.modes().then(
      (modes) => current && setOffered({ modes, options: session.configOptions }),
      () => current && setOffered({ modes: undefined, options: session.configOptions }),
    );
    return () => {
      current = false;
    };
  }, [session, view.modes, view.configOptions]);
  const live = session === undefined ? undefined : offered;
  const modes = live?.modes ?? view.modes;
  const options = live && live.options.length > 0 ? live.options : view.configOptions;
  return [...modeChoice(session, modes, view), ...options.flatMap((option) => optionChoice(session, option, modes))];
}

function modeChoice(
  session: Session | undefined,
  modes: Modes | SessionModeState | undefined,
  view: SessionView,
): Choice[] {
  const available = modes?.availableModes ?? [];
  const current = view.modes?.currentModeId ?? modes?.currentModeId;
  if (available.length < 2 || !current) return [];
  return [
    {
      id: "mode",
      name: "Mode",
      description: available.find(({ id }) => id === current)?.description ?? undefined,
      current,
      isPlain: true,
      values: available.map(({ id, name }) => ({ value: id, name: name ?? id })),
      set: async (value) => await session?.setMode(value),
    },
  ];
}

function optionChoice(
  session: Session | undefined,
  option: SessionConfigOption,
  modes: { availableModes: readonly unknown[] } | undefined,
): Choice[] {
  if (option.category === "mode" && (modes?.availableModes.length ?? 0) > 1) return [];
  const isPlain = option.category === "mode" || option.category === "model";
  const values = valuesOf(option);
  if (values.length === 0) return [];
  return [
    {
      id: option.id,
      name: option.name,
      description: option.description ?? undefined,
      isPlain,
      current: String(option.currentValue),
      values,
      set: async (value) => await session?.setConfigOption(option.id, typed(option, value)),
    },
  ];
}
