/**
 * Text as pieces that can be shown without deceiving anyone.
 *
 * Characters that are invisible, that reorder what stands around them, or that pretend to be other characters become
 * marks with a name. `exact` is for what will be run or touched: commands, paths, values. `prose` is for sentences,
 * where joiners, spaces and direction marks are part of how people write.
 */

/** How strict to be. */
export type Strictness = "exact" | "prose";

/** A piece of a text: as it is, or a mark in place of what cannot be seen. */
export type Piece =
  | { readonly kind: "text"; readonly text: string }
  | {
      readonly kind: "mark";
      /** What the text really has here. */
      readonly text: string;
      /** What to show. */
      readonly label: string;
      /** What it is, in words. */
      readonly name: string;
    }
  | {
      /** A word that mixes letters of two scripts, one of which looks like the other. */
      readonly kind: "lookalike";
      readonly text: string;
      readonly name: string;
    };

const NAMES: Readonly<Record<number, string>> = {
  0x00ad: "soft hyphen",
  0x034f: "combining grapheme joiner",
  0x061c: "Arabic letter mark",
  0x115f: "Hangul filler",
  0x1160: "Hangul filler",
  0x17b4: "Khmer inherent vowel",
  0x17b5: "Khmer inherent vowel",
  0x180e: "Mongolian vowel separator",
  0x200b: "zero width space",
  0x200c: "zero width non-joiner",
  0x200d: "zero width joiner",
  0x200e: "left-to-right mark",
  0x200f: "right-to-left mark",
  0x2028: "line separator",
  0x2029: "paragraph separator",
  0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding",
  0x202c: "pop directional formatting",
  0x202d: "left-to-right override",
  0x202e: "right-to-left override",
  0x2060: "word joiner",
  0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate",
  0x2068: "first strong isolate",
  0x2069: "pop directional isolate",
  0x2800: "braille blank",
  0x3164: "Hangul filler",
  0xfeff: "byte order mark",
  0xffa0: "halfwidth Hangul filler",
  0x00a0: "no-break space",
  0x0085: "next line",
};

const CONTROL_NAMES = (
  "null,start of heading,start of text,end of text,end of transmission,enquiry,acknowledge,bell,backspace,tab," +
  "line feed,vertical tab,form feed,carriage return,shift out,shift in,data link escape,device control 1," +
  "device control 2,device control 3,device control 4,negative acknowledge,synchronous idle,end of block,cancel," +
  "end of medium,substitute,escape,file separator,group separator,record separator,unit separator"
).split(",");

/** Controls other than tab and line feed, and what changes the order of a whole line. */
const DECEIVING = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069";
const TAGS = "\\u{e0000}-\\u{e0fff}";
/** What takes no room, or room that looks like a plain space. */
const UNSEEN =
  "\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u1680\\u17b4\\u17b5\\u180b-\\u180f\\u2000-\\u200f\\u202f\\u205f-\\u2065" +
  "\\u206a-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb";
const PADDING = " {17,}|\\t{5,}|\\n(?:[ \\t]*\\n){4,}";

const PATTERNS: Readonly<Record<Strictness, RegExp>> = {
  prose: new RegExp(`[${DECEIVING}${TAGS}]`, "gu"),
  exact: new RegExp(`${PADDING}|[${DECEIVING}${TAGS}${UNSEEN}]`, "gu"),
};

const LATIN = /\p{Script=Latin}/u;
const ALIKE = /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Armenian}\p{Script=Cherokee}\uff01-\uff5e]/u;
const WORD = /[\p{L}\p{M}\p{N}_]+/gu;

/** The pieces of a text, in order; together they are the text. */
export function pieces(text: string, strictness: Strictness = "exact"): Piece[] {
  const found: Piece[] = [];
  const pattern = PATTERNS[strictness];
  pattern.lastIndex = 0;
  let after = 0;
  for (const match of text.matchAll(pattern)) {
    plain(text.slice(after, match.index), strictness, found);
    found.push(mark(match[0]));
    after = match.index + match[0].length;
  }
  plain(text.slice(after), strictness, found);
  return found;
}

/** The same as one string, for places that take no elements: titles, labels, `document.title`. */
export function spelledOut(text: string, strictness: Strictness = "exact"): string {
  return pieces(text, strictness)
    .map((piece) => (piece.kind === "mark" ? piece.label : piece.text))
    .join("");
}

function plain(text: string, strictness: Strictness, found: Piece[]): void {
  if (text === "") return;
  if (strictness === "exact" && ALIKE.test(text)) {
    let after = 0;
    for (const match of text.matchAll(WORD)) {
      const [word] = match;
      if (!ALIKE.test(word) || !(LATIN.test(word) || isFullwidth(word))) continue;
      if (match.index > after) found.push({ kind: "text", text: text.slice(after, match.index) });
      const name = `mixes look-alike letters: ${[...word]
        .filter((each) => ALIKE.test(each))
        .map(codeOf)
        .join(" ")}`;
      found.push({ kind: "lookalike", text: word, name });
      after = match.index + word.length;
    }
    if (after < text.length) found.push({ kind: "text", text: text.slice(after) });
    return;
  }
  found.push({ kind: "text", text });
}

function isFullwidth(word: string): boolean {
  return /[\uff01-\uff5e]/u.test(word);
}

function mark(text: string): Piece {
  if (text.length > 2 && text.startsWith(" ")) {
    return { kind: "mark", text, label: `␣×${text.length}`, name: `${text.length} spaces` };
  }
  if (text.length > 2 && text.startsWith("\t")) {
    return { kind: "mark", text, label: `⇥×${text.length}`, name: `${text.length} tabs` };
  }
  if (text.length > 2 && text.startsWith("\n")) {
    const lines = text.split("\n").length - 2;
    return { kind: "mark", text, label: `\n⏎×${lines}\n`, name: `${lines} empty lines` };
  }
  const code = text.codePointAt(0) as number;
  if (code < 0x20)
    return { kind: "mark", text, label: String.fromCodePoint(0x2400 + code), name: CONTROL_NAMES[code] as string };
  if (code === 0x7f) return { kind: "mark", text, label: "␡", name: "delete" };
  const known = NAMES[code];
  return { kind: "mark", text, label: `‹${codeOf(text)}›`, name: known ?? "a character that cannot be seen" };
}

function codeOf(text: string): string {
  return `U+${(text.codePointAt(0) as number).toString(16).toUpperCase().padStart(4, "0")}`;
}
