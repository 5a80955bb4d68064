/** Reading what strangers wrote: values of a JSON object, of the type that is wanted or not at all. */

export type Json = Readonly<Record<string, unknown>>;

/** The object, or an empty one. */
export function objectOf(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : NOTHING;
}

/** A member that is an object, or an empty one. */
export function objectAt(value: Json, name: string): Json {
  return objectOf(value[name]);
}

export function textAt(value: Json, name: string): string | undefined {
  const found = value[name];
  return typeof found === "string" ? found : undefined;
}

export function numberAt(value: Json, name: string): number | undefined {
  const found = value[name];
  return typeof found === "number" ? found : undefined;
}

/** A member that is a list; undefined when it is none. */
export function listAt<T = unknown>(value: Json, name: string): readonly T[] | undefined {
  const found = value[name];
  return Array.isArray(found) ? (found as T[]) : undefined;
}

/** Sandbox-agent's own part of `_meta`. */
export function ours(value: Json): Json {
  return objectAt(objectAt(value, "_meta"), "sandboxagent.dev");
}

const NOTHING: Json = Object.freeze({});
