/**
 * Markdown that grows, as blocks: those that nothing can change any more keep their identity, so that a view draws only
 * the last one anew.
 */

import { Lexer } from "marked";

/** One block of Markdown: its source, and whether more text may still change it. */
export interface Block {
  readonly raw: string;
  readonly finished: boolean;
}

/** Beyond this, a block that is still open is no longer looked at for its structure. */
const MAX_OPEN = 256 * 1024;
/** Blocks of blocks of blocks: a parser that recurses must not be led down endlessly. */
const DEEPEST = 24;
/** More marks of emphasis, links and code than this in one paragraph are no markup. */
const MAX_MARKS = 1_000;

/** Splits a text that is appended to. Asked with a text that does not begin with the one before, it starts anew. */
export class GrowingBlocks {
  #text = "";
  /** Where the open part begins. */
  #open = 0;
  #finished: Block[] = [];
  #shown: readonly Block[] = [];

  /** The blocks of a text; `done` says that nothing follows. */
  of(text: string, done: boolean): readonly Block[] {
    if (!text.startsWith(this.#text)) {
      this.#open = 0;
      this.#finished = [];
    } else if (text.length === this.#text.length && !done && this.#shown.length > 0) {
      return this.#shown;
    }
    this.#text = text;
    // A line that is not complete may turn out to be anything: "-" begins a list, or is a rule, or a word.
    const end = done ? text.length : text.lastIndexOf("\n") + 1;
    if (end > this.#open) this.#advance(text.slice(this.#open, end), done);
    const rest = text.slice(this.#open);
    this.#shown = rest === "" ? [...this.#finished] : [...this.#finished, { raw: rest, finished: done }];
    return this.#shown;
  }

  #advance(lines: string, done: boolean): void {
    const raws = split(lines);
    // The last block with content may still grow: a list continues after an empty line, a paragraph becomes a heading.
    const kept = done ? raws.length : raws.length - 1;
    for (const raw of raws.slice(0, kept)) {
      this.#finished.push({ raw, finished: true });
      this.#open += raw.length;
    }
  }
}

/** The blocks of a whole text. */
export function blocksOf(text: string): readonly Block[] {
  return new GrowingBlocks().of(text, true);
}

/** Whether a block is one that a parser might take for ever over, or overflow its stack with. */
export function isAbsurd(raw: string): boolean {
  return (
    TOO_DEEP.test(raw) || (raw.length > MAX_MARKS && raw.split(NEXT_RUN).some((run) => marksIn(run) > MAX_MARKS))
  );
}

const TOO_DEEP = new RegExp(`^[ \\t]*(?:(?:>|[-+*]|\\d{1,9}[.)])[ \\t]*){${DEEPEST},}`, "m");
/** Where a parser of what stands within lines begins anew: at empty lines, items, cells, headings, quotes. */
const NEXT_RUN = /\n(?=[ \t]*(?:\n|[-+*>#|]|\d{1,9}[.)]))|\|/;

/** Characters that may be markup: the time to find out which of them are grows with their square. */
function marksIn(run: string): number {
  return run.length > MAX_MARKS ? (run.match(/[_*`~[\]<!\\@]/g)?.length ?? 0) : 0;
}

function split(text: string): string[] {
  if (text.length > MAX_OPEN || isAbsurd(text)) return paragraphs(text);
  try {
    const raws: string[] = [];
    for (const token of new Lexer({ gfm: true }).blockTokens(text)) {
      // Empty lines belong to what stands before them.
      if (token.type === "space" && raws.length > 0) raws[raws.length - 1] += token.raw;
      else raws.push(token.raw);
    }
    // A parser that loses or changes something must not make us lose it.
    return raws.join("") === text ? raws : paragraphs(text);
  } catch {
    return paragraphs(text);
  }
}

/** A text in parts that end with empty lines, none of them very long. */
function paragraphs(text: string): string[] {
  const parts: string[] = [];
  for (const part of text.split(/(?<=\n[ \t]*\n)/)) {
    for (let at = 0; at < part.length; at += MAX_OPEN) parts.push(part.slice(at, at + MAX_OPEN));
  }
  return parts;
}
