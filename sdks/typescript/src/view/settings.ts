/** Reads the modes, options, usage and attachments of a session (pure). */

import type { SessionConfigOption, SessionModeState } from "@agentclientprotocol/sdk";

import type { Attachment } from "../turn.js";
import { type Json, isObject, numberAt, objectAt, objectsAt, textAt } from "./json.js";
import type { SessionUsage } from "./session-view.js";

/** The modes that an agent offers. */
export function modesOf(modes: Json): SessionModeState {
  const availableModes = objectsAt(modes, "availableModes") ?? [];
  return { ...modes, availableModes, currentModeId: textAt(modes, "currentModeId") ?? "" } as SessionModeState;
}

/** The modes after a change of the mode. */
export function modeAfter(modes: SessionModeState | undefined, currentModeId: string): SessionModeState {
  return { ...modes, availableModes: modes?.availableModes ?? [], currentModeId };
}

/** The name of a mode, for people. */
export function modeName({ availableModes }: SessionModeState, modeId: string): string {
  return nameOf(availableModes.find(({ id }) => id === modeId)) ?? modeId;
}

/** The options whose values have changed, each as a line for people. */
export function optionChanges(
  before: readonly SessionConfigOption[],
  options: readonly SessionConfigOption[],
): readonly string[] {
  const known = new Map(before.map((option) => [option.id, valueText(option)]));
  return options.flatMap((option) => {
    const [was, is] = [known.get(option.id), valueText(option)];
    // A mode has an update of its own.
    if (typeof option.id !== "string" || option.category === "mode") return [];
    if (was === undefined || is === undefined || was === is) return [];
    return [`${nameOf(option) ?? option.id}: ${is}`];
  });
}

/** The current value of an option, for people; undefined for a value of no known form. */
function valueText(option: SessionConfigOption): string | undefined {
  const written = option as unknown as Json;
  const value = written["currentValue"];
  if (typeof value === "boolean") return value ? "On" : "Off";
  if (typeof value !== "string") return undefined;
  const values = (objectsAt(written, "options") ?? []).flatMap((each) => [each, ...(objectsAt(each, "options") ?? [])]);
  return nameOf(values.find((each) => each["value"] === value)) ?? value;
}

/** The usage after what an agent reports. */
export function usageAfter(usage: SessionUsage, update: Json): SessionUsage {
  const [used, size] = [numberAt(update, "used"), numberAt(update, "size")];
  const cost = objectAt(update, "cost");
  const [amount, currency] = [numberAt(cost, "amount"), textAt(cost, "currency")];
  return {
    ...usage,
    ...(used !== undefined && size !== undefined && { context: { used, size } }),
    ...(amount !== undefined && currency !== undefined && { cost: { amount, currency } }),
  };
}

/** The files that a prompt names. */
export function attachmentsOf(facts: Json): readonly Attachment[] {
  return (objectsAt(facts, "attachments") ?? []).flatMap((written) => {
    const [path, mime, filename] = ["path", "mime", "filename"].map((name) => textAt(written, name));
    if (path === undefined) return [];
    return [{ path, ...(mime !== undefined && { mime }), ...(filename !== undefined && { filename }) }];
  });
}

function nameOf(written: unknown): string | undefined {
  return isObject(written) ? textAt(written, "name") : undefined;
}
