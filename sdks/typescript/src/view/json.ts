/** Reads members of JSON that others wrote: a value of the wanted type, or none. */

/** An object of JSON. */
export type Json = Readonly<Record<string, unknown>>;

/** The object, or an empty one. */
export function objectOf(value: unknown): Json {
  return isObject(value) ? value : EMPTY;
}

/** A member that is an object, or an empty one. */
export function objectAt(value: Json, name: string): Json {
  return objectOf(memberOf(value, name));
}

/** A member that is a text. */
export function textAt(value: Json, name: string): string | undefined {
  const found = memberOf(value, name);
  return typeof found === "string" ? found : undefined;
}

/** A member that is a number. */
export function numberAt(value: Json, name: string): number | undefined {
  const found = memberOf(value, name);
  return typeof found === "number" ? found : undefined;
}

/** A member that is a list. */
export function listAt<T = unknown>(value: Json, name: string): readonly T[] | undefined {
  const found = memberOf(value, name);
  return Array.isArray(found) ? (found as T[]) : undefined;
}

/** The objects in a member that is a list. Other values are left out. */
export function objectsAt<T = Json>(value: Json, name: string): readonly T[] | undefined {
  return listAt(value, name)?.filter(isObject) as readonly T[] | undefined;
}

/** A JSON-RPC id that can be one. */
export function rpcId(id: unknown): string | number | undefined {
  return typeof id === "string" || typeof id === "number" ? id : undefined;
}

/** Sandbox-agent's own part of `_meta`. */
export function ours(value: Json): Json {
  return objectAt(objectAt(value, "_meta"), "sandboxagent.dev");
}

/** Whether a value is an object of JSON: neither a list nor null. */
export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function memberOf(value: Json, name: string): unknown {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

const EMPTY: Json = Object.freeze({});
