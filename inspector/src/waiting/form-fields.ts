/** A form's schema as fields: flat, as ACP has it. What is of no known type becomes a text. */

type Schema = Readonly<Record<string, unknown>>;

export interface Choice {
  readonly value: string;
  readonly label: string;
  readonly description: string | undefined;
}

export interface Field {
  readonly name: string;
  readonly label: string;
  readonly description: string | undefined;
  readonly required: boolean;
  readonly type: "text" | "long" | "number" | "integer" | "boolean" | "one" | "many";
  readonly choices: readonly Choice[];
  readonly initial: Value;
  /** For an input: `email`, `url`, `date`, `datetime-local`. */
  readonly input: string;
  readonly minimum: number | undefined;
  readonly maximum: number | undefined;
  readonly minLength: number | undefined;
  readonly maxLength: number | undefined;
}

/** What a field holds while it is filled in. */
export type Value = string | boolean | readonly string[];

const INPUTS: Readonly<Record<string, string>> = {
  email: "email",
  uri: "url",
  date: "date",
  "date-time": "datetime-local",
};

/** The fields of a form, in its order. */
export function fieldsOf(schema: Schema | undefined): Field[] {
  const properties = fields(schema?.["properties"]);
  const required = new Set(strings(schema?.["required"]));
  return Object.entries(properties).map(([name, given]) => {
    const property = fields(given);
    const choices = choicesOf(property);
    const type = typeOf(property, choices);
    return {
      name,
      label: string(property["title"]) ?? name,
      description: string(property["description"]),
      required: required.has(name),
      type,
      choices,
      initial: initialOf(property["default"], type),
      input: INPUTS[string(property["format"]) ?? ""] ?? "text",
      minimum: number(property["minimum"]),
      maximum: number(property["maximum"]),
      minLength: number(property["minLength"]),
      maxLength: number(property["maxLength"]),
    };
  });
}

/** What is handed in: fields that were left empty are left out, unless they are required. */
export function contentOf(
  all: readonly Field[],
  values: Readonly<Record<string, Value>>,
): Record<string, string | number | boolean | string[]> {
  const content: Record<string, string | number | boolean | string[]> = {};
  for (const { name, type, required } of all) {
    const value = values[name];
    if (type === "boolean") {
      if (value === true || required || value === false) content[name] = value === true;
    } else if (Array.isArray(value)) {
      if (value.length > 0 || required) content[name] = [...(value as string[])];
    } else if (typeof value === "string" && value !== "") {
      content[name] = type === "number" || type === "integer" ? Number(value) : value;
    }
  }
  return content;
}

/** Why a form cannot be handed in yet, by field. */
export function missing(
  all: readonly Field[],
  values: Readonly<Record<string, Value>>,
): Readonly<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const field of all) {
    const value = values[field.name];
    const empty = value === undefined || value === "" || (Array.isArray(value) && value.length === 0);
    if (empty && field.required && field.type !== "boolean") found[field.name] = "This is needed";
    else if (!empty && (field.type === "number" || field.type === "integer")) {
      const parsed = Number(value);
      if (Number.isNaN(parsed) || (field.type === "integer" && !Number.isInteger(parsed)))
        found[field.name] = `This must be a${field.type === "integer" ? " whole" : ""} number`;
      else if (field.minimum !== undefined && parsed < field.minimum) found[field.name] = `At least ${field.minimum}`;
      else if (field.maximum !== undefined && parsed > field.maximum) found[field.name] = `At most ${field.maximum}`;
    } else if (!empty && typeof value === "string") {
      if (field.minLength !== undefined && value.length < field.minLength)
        found[field.name] = `At least ${field.minLength} characters`;
      else if (field.maxLength !== undefined && value.length > field.maxLength)
        found[field.name] = `At most ${field.maxLength} characters`;
    }
  }
  return found;
}

function typeOf(property: Schema, choices: readonly Choice[]): Field["type"] {
  const type = property["type"];
  if (type === "array") return "many";
  if (type === "boolean" || type === "number" || type === "integer") return type;
  if (choices.length > 0) return "one";
  return (number(property["maxLength"]) ?? 0) > 200 ? "long" : "text";
}

function choicesOf(property: Schema): Choice[] {
  const source = property["type"] === "array" ? fields(property["items"]) : property;
  const titled = [source["oneOf"], source["anyOf"]].find(Array.isArray) as unknown[] | undefined;
  if (titled) {
    return titled.flatMap((each) => {
      const option = fields(each);
      const value = string(option["const"]);
      return value === undefined
        ? []
        : [{ value, label: string(option["title"]) ?? value, description: string(option["description"]) }];
    });
  }
  const names = strings(source["enumNames"]);
  return strings(source["enum"]).map((value, index) => ({
    value,
    label: names[index] ?? value,
    description: undefined,
  }));
}

function initialOf(given: unknown, type: Field["type"]): Value {
  if (type === "boolean") return given === true;
  if (type === "many") return strings(given);
  return typeof given === "string" || typeof given === "number" ? String(given) : "";
}

function fields(value: unknown): Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Schema) : {};
}

function string(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function number(value: unknown): number | undefined {
  return typeof value === "number" ? value : undefined;
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each): each is string => typeof each === "string") : [];
}
