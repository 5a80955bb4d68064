/** What there is to choose from in an option of an agent's, whichever form it has (pure). */

import type { SessionConfigOption } from "@agentclientprotocol/sdk";

export interface OptionValue {
  readonly value: string;
  readonly name: string;
  readonly description?: string | undefined;
  readonly group?: string;
}

const SWITCH: readonly OptionValue[] = [
  { value: "true", name: "On" },
  { value: "false", name: "Off" },
];

/** Its values; none for a form that is not known here. */
export function valuesOf(option: SessionConfigOption): readonly OptionValue[] {
  if (option.type === "boolean") return SWITCH;
  if (option.type !== "select" || !Array.isArray(option.options)) return [];
  const value = (each: { value: string; name: string; description?: string | null | undefined }): OptionValue => ({
    value: each.value,
    name: each.name,
    description: each.description ?? undefined,
  });
  return option.options.flatMap((each) =>
    "options" in each ? each.options.map((one) => ({ ...value(one), group: each.name })) : [value(each)],
  );
}

/** A value as the agent wants it. */
export function typed(option: SessionConfigOption, value: string): string | boolean {
  return option.type === "boolean" ? value === "true" : value;
}

/** The name of the value that it has. */
export function currentName(option: SessionConfigOption): string {
  const current = String(option.currentValue);
  const found = valuesOf(option).find(({ value }) => value === current);
  return found?.name ?? current;
}
