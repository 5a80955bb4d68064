/** What an agent offers, to be chosen before its session begins: model, mode, and every other option that it has. */

import type { SessionConfigOption } from "@agentclientprotocol/sdk";
import { type ReactNode, useCallback } from "react";
import type { Agent, CreateSessionOptions } from "sandboxagent";

import { Field, Select, Spinner, wordsOf } from "../design/index.js";
import { useMachine } from "../nodes/machine.js";
import { ValueList } from "../options/value-list.js";
import { type OptionValue, typed, valuesOf } from "../options/values.js";
import { useLoaded } from "../server/index.js";
import { spelledOut } from "../text/visible.js";
import styles from "./new-session.module.css";

/** What was chosen; everything else is as the agent has it. */
export type Chosen = Pick<CreateSessionOptions, "model" | "mode" | "configOptions">;

export const NOTHING_CHOSEN: Chosen = {};

interface OfferFieldsProps {
  readonly agent: Agent;
  readonly chosen: Chosen;
  readonly onChange: (chosen: Chosen) => void;
}

/** An agent that has not said yet what it offers is asked. */
export function OfferFields({ agent, chosen, onChange }: OfferFieldsProps): ReactNode {
  const { agents } = useMachine();
  const isKnown = agent.models !== undefined || agent.modes !== undefined;
  const ask = useCallback(() => agents.get(agent.id, { models: true }), [agents, agent.id]);
  const [asked] = useLoaded(isKnown ? undefined : ask);
  const offers = isKnown ? agent : asked.value;
  if (!offers) {
    return (
      <p className={styles.asking}>
        {asked.state === "failed" ? (
          `${agent.title} does not say what it offers: ${wordsOf(asked.error)}`
        ) : (
          <>
            <Spinner label="Asking" /> Asking {agent.title} for its models, modes and options
          </>
        )}
      </p>
    );
  }
  const models = (offers.models?.availableModels ?? []).map(({ modelId, name, description }) => ({
    value: modelId,
    name: name || modelId,
    description: description ?? undefined,
  }));
  const modes = (offers.modes?.availableModes ?? []).map(({ id, name, description }) => ({
    value: id,
    name,
    description: description ?? undefined,
  }));
  const { model, mode, configOptions = {} } = chosen;
  const choose = (option: SessionConfigOption, value: string): void => {
    const { [option.id]: _, ...others } = configOptions;
    onChange({ ...chosen, configOptions: value === "" ? others : { ...others, [option.id]: typed(option, value) } });
  };
  return (
    <div className={styles.pair}>
      <Offer label="Model" values={models} value={model ?? ""} onChange={(value) => onChange(withOne(chosen, "model", value))} />
      <Offer label="Mode" values={modes} value={mode ?? ""} onChange={(value) => onChange(withOne(chosen, "mode", value))} />
      {furtherOptions(offers).map((option) => (
        <Offer
          key={option.id}
          label={option.name}
          about={option.description ?? undefined}
          values={valuesOf(option)}
          value={String(configOptions[option.id] ?? "")}
          onChange={(value) => choose(option, value)}
        />
      ))}
    </div>
  );
}

interface OfferProps {
  readonly label: string;
  readonly about?: string | undefined;
  readonly values: readonly OptionValue[];
  /** Empty for what the agent has itself. */
  readonly value: string;
  readonly onChange: (value: string) => void;
}

function Offer({ label, about, values, value, onChange }: OfferProps): ReactNode {
  if (values.length === 0) return null;
  const hint = values.find((each) => each.value === value)?.description ?? about;
  return (
    <Field label={spelledOut(label, "prose").slice(0, 80)} hint={hint && spelledOut(hint, "prose").slice(0, 300)}>
      {(described) => (
        <Select {...described} value={value} onChange={(event) => onChange(event.target.value)}>
          <option value="">Agent's default</option>
          <ValueList values={values} />
        </Select>
      )}
    </Field>
  );
}

/** Options that are neither its mode nor its model, which have fields of their own. */
export function furtherOptions({ configOptions = [] }: Pick<Agent, "configOptions">): readonly SessionConfigOption[] {
  return configOptions.filter(({ id, category }) => ![id, category].some((name) => name === "mode" || name === "model"));
}

function withOne(chosen: Chosen, name: "model" | "mode", value: string): Chosen {
  const { [name]: _, ...others } = chosen;
  return value === "" ? others : { ...others, [name]: value };
}
