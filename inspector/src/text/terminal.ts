/**
 * What a command wrote, as the lines that a terminal would show: colours are kept, a line that was written over shows
 * its last state, and everything else that steers a terminal (cursor, title, links, clipboard) is dropped.
 */

/** How a piece of text looks. Colours are `0` to `255` of the usual palette, or `#rrggbb`. */
export interface Style {
  readonly color?: number | `#${string}`;
  readonly background?: number | `#${string}`;
  readonly bold?: true;
  readonly dim?: true;
  readonly italic?: true;
  readonly underline?: true;
  readonly strike?: true;
}

/** A piece of a line in one style. */
export interface Run {
  readonly text: string;
  readonly style: Style;
}

/** The newest lines, and how much before them is left out. */
export interface Screen {
  readonly lines: readonly (readonly Run[])[];
  readonly omitted: number;
}

/** Characters that are looked at, lines that are kept, and styles that change within a line before they are ignored. */
const LONGEST = 1_048_576;
const MAX_LINES = 20_000;
const MAX_RUNS = 400;
const MAX_LINE = 10_000;

const PLAIN: Style = {};
// CSI, OSC, DCS and the other strings, then every other escape of two or three characters.
// eslint-disable-next-line no-control-regex
const SEQUENCE =
  /(?:\u001b\[|\u009b)([0-?]{0,64})[ -/]{0,4}([@-~])|(?:\u001b[\]PX^_]|[\u009d\u0090\u0098\u009e\u009f])[^\u0007\u001b\u009c]{0,4096}(?:\u0007|\u001b\\|\u009c)?|\u001b[ -/]{0,4}[0-~]?|\r\n|[\n\r\b]/g;

/** The lines that a terminal shows after an output. */
export function screenOf(output: string): Screen {
  const cut = Math.max(0, output.length - LONGEST);
  const text = output.slice(cut);
  const writer = new Writer();
  let after = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    if (match.index > after) writer.write(text.slice(after, match.index));
    after = match.index + match[0].length;
    const [all, parameters, final] = match;
    if (all === "\n" || all === "\r\n") writer.newLine();
    else if (all === "\r") writer.column = 0;
    else if (all === "\b") writer.column = Math.max(0, writer.column - 1);
    else if (final === "m") writer.style = restyled(writer.style, parameters ?? "");
    else if (final === "K") writer.erase(Number(parameters) || 0);
    else if (final === "G") writer.column = Math.min(Math.max(0, (Number(parameters) || 1) - 1), MAX_LINE);
    else if (final === "C")
      writer.column = Math.min(writer.column + Math.min(Number(parameters) || 1, 1_000), MAX_LINE);
    else if (final === "D") writer.column = Math.max(0, writer.column - (Number(parameters) || 1));
  }
  if (after < text.length) writer.write(text.slice(after));
  return writer.screen(cut);
}

/** The text alone. */
export function plainOf(screen: Screen): string {
  return screen.lines.map((line) => line.map(({ text }) => text).join("")).join("\n");
}

/** Writes into lines of runs; a run that is written over is cut. */
class Writer {
  style: Style = PLAIN;
  column = 0;
  #lines: Run[][] = [[]];
  #length = 0;
  #dropped = 0;

  write(text: string): void {
    const line = this.#lines.at(-1) as Run[];
    const room = MAX_LINE - this.column;
    const written = text.length > room ? text.slice(0, Math.max(0, room)) : text;
    this.#dropped += text.length - written.length;
    if (written === "") return;
    if (this.column < this.#length) this.#replace(line, written);
    else {
      if (this.column > this.#length) append(line, { text: " ".repeat(this.column - this.#length), style: PLAIN });
      append(line, { text: written, style: this.style });
    }
    this.column += written.length;
    this.#length = Math.max(this.#length, this.column);
  }

  newLine(): void {
    this.#lines.push([]);
    this.column = 0;
    this.#length = 0;
    // In large steps, because each step moves all lines.
    if (this.#lines.length > 2 * MAX_LINES) this.#dropped += lengthOf(this.#lines.splice(0, MAX_LINES));
  }

  /** 0: what follows, 1: what comes before, 2: all of the line. */
  erase(what: number): void {
    const line = this.#lines.at(-1) as Run[];
    const kept = what === 0 ? slice(line, 0, this.column) : what === 1 ? slice(line, this.column, this.#length) : [];
    const blank: Run[] = what === 1 && this.column > 0 ? [{ text: " ".repeat(this.column), style: PLAIN }] : [];
    line.splice(0, line.length, ...blank, ...kept);
    this.#length = line.reduce((sum, { text }) => sum + text.length, 0);
  }

  screen(cut: number): Screen {
    if (this.#lines.length > MAX_LINES)
      this.#dropped += lengthOf(this.#lines.splice(0, this.#lines.length - MAX_LINES));
    return { lines: this.#lines, omitted: cut + this.#dropped };
  }

  #replace(line: Run[], text: string): void {
    const before = slice(line, 0, this.column);
    const behind = slice(line, this.column + text.length, this.#length);
    line.splice(0, line.length, ...before);
    append(line, { text, style: this.style });
    for (const run of behind) append(line, run);
  }
}

function append(line: Run[], run: Run): void {
  const last = line.at(-1);
  if (last && (last.style === run.style || line.length >= MAX_RUNS))
    line[line.length - 1] = { text: last.text + run.text, style: last.style };
  else line.push(run);
}

function slice(line: readonly Run[], from: number, to: number): Run[] {
  const found: Run[] = [];
  let at = 0;
  for (const run of line) {
    const text = run.text.slice(Math.max(0, from - at), Math.max(0, to - at));
    if (text !== "") found.push({ text, style: run.style });
    at += run.text.length;
  }
  return found;
}

function lengthOf(lines: readonly (readonly Run[])[]): number {
  return lines.reduce((sum, line) => sum + 1 + line.reduce((inner, { text }) => inner + text.length, 0), 0);
}

function restyled(style: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map(Number);
  let made: Style = style;
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] as number;
    if (code === 38 || code === 48) {
      const [color, used] = extended(codes.slice(at + 1));
      at += used;
      if (color !== undefined) made = code === 38 ? { ...made, color } : { ...made, background: color };
    } else {
      made = applied(made, code);
    }
  }
  return made;
}

function applied(style: Style, code: number): Style {
  switch (code) {
    case 0:
      return PLAIN;
    case 1:
      return { ...style, bold: true };
    case 2:
      return { ...style, dim: true };
    case 3:
      return { ...style, italic: true };
    case 4:
      return { ...style, underline: true };
    case 9:
      return { ...style, strike: true };
    case 22:
      return without(style, "bold", "dim");
    case 23:
      return without(style, "italic");
    case 24:
      return without(style, "underline");
    case 29:
      return without(style, "strike");
    case 39:
      return without(style, "color");
    case 49:
      return without(style, "background");
    default:
  }
  if (code >= 30 && code <= 37) return { ...style, color: code - 30 };
  if (code >= 90 && code <= 97) return { ...style, color: code - 82 };
  if (code >= 40 && code <= 47) return { ...style, background: code - 40 };
  if (code >= 100 && code <= 107) return { ...style, background: code - 92 };
  return style;
}

function without(style: Style, ...names: (keyof Style)[]): Style {
  return Object.fromEntries(Object.entries(style).filter(([name]) => !names.includes(name as keyof Style)));
}

function extended([kind, ...values]: readonly number[]): [Style["color"] | undefined, number] {
  if (kind === 5) {
    const [index] = values;
    return [index !== undefined && index >= 0 && index <= 255 ? index : undefined, 2];
  }
  if (kind === 2) {
    const parts = values.slice(0, 3).map((each) =>
      Math.min(255, Math.max(0, each || 0))
        .toString(16)
        .padStart(2, "0"),
    );
    return [parts.length === 3 ? `#${parts.join("")}` : undefined, 4];
  }
  return [undefined, 1];
}

/** A colour of the palette of 256, beyond the first 16, which belong to the theme. */
export function paletteColor(index: number): `#${string}` {
  const hex = (value: number): string => value.toString(16).padStart(2, "0");
  if (index >= 232) return `#${hex(8 + (index - 232) * 10).repeat(3)}`;
  const at = index - 16;
  const level = (step: number): number => (step === 0 ? 0 : 55 + step * 40);
  return `#${hex(level(Math.floor(at / 36)))}${hex(level(Math.floor(at / 6) % 6))}${hex(level(at % 6))}`;
}
