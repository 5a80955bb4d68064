/** Reads the fields of an agent's form from its schema, and what was filled in. */

import { type Json, objectAt, objectOf } from "../view/json.js";

type Value = string | number | boolean | string[];

/** A field of a form. */
export interface Field {
  readonly name: string;
  readonly type: "string" | "number" | "integer" | "boolean" | "array";
  readonly title: string;
  readonly description: string | undefined;
  readonly required: boolean;
  readonly initial: string | undefined;
  readonly choices: readonly { readonly value: string; readonly label: string }[] | undefined;
}

/** The fields of a flat schema; one of an unknown type is a text. */
export function fieldsOf(schema: unknown): Field[] {
  const { properties, required } = objectOf(schema);
  const wanted = new Set(Array.isArray(required) ? (required as unknown[]) : []);
  return Object.entries(objectOf(properties)).map(([name, written]) => {
    const property = objectOf(written);
    const { type, title, description, default: initial } = property;
    return {
      name,
      type: isType(type) ? type : "string",
      title: typeof title === "string" ? title : name,
      description: typeof description === "string" ? description : undefined,
      required: wanted.has(name),
      initial: initial === undefined || initial === null ? undefined : String(initial),
      choices: choicesOf(type === "array" ? objectAt(property, "items") : property),
    };
  });
}

/** What was filled in, as the schema wants it; empty fields are left out. */
export function filledIn(fields: readonly Field[], form: FormData): Record<string, Value> {
  const content: Record<string, Value> = {};
  for (const { name, type } of fields) {
    const value = String(form.get(name) ?? "");
    if (type === "boolean") content[name] = form.has(name);
    else if (type === "array") content[name] = form.getAll(name).map(String);
    else if (value !== "") content[name] = type === "string" ? value : Number(value);
  }
  return content;
}

function choicesOf(property: Json): Field["choices"] {
  const { enum: values, enumNames, oneOf, anyOf } = property;
  const named = Array.isArray(oneOf) ? oneOf : Array.isArray(anyOf) ? anyOf : undefined;
  if (named) {
    return named.map((each: unknown) => {
      const { const: value, title } = objectOf(each);
      return { value: String(value), label: String(title ?? value) };
    });
  }
  if (!Array.isArray(values)) return undefined;
  const names: readonly unknown[] = Array.isArray(enumNames) ? enumNames : [];
  return values.map((value: unknown, index) => ({ value: String(value), label: String(names[index] ?? value) }));
}

function isType(type: unknown): type is Field["type"] {
  return ["string", "number", "integer", "boolean", "array"].includes(type as string);
}
