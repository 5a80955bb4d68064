/** Text in which nothing hides: see `visible.ts` for what becomes a mark. */

import { memo, useMemo, useState, type ReactNode } from "react";

import { type Piece, type Strictness, pieces } from "./visible.js";

/** More than this at once makes a browser slow, and helps no reader. */
const SHOWN = 20_000;

export interface SafeTextProps {
  readonly text: string;
  /** `exact` unless given: every character that cannot be seen is marked. */
  readonly as?: Strictness;
  /** How many characters are shown before the reader asks for more. */
  readonly limit?: number;
}

/** A text as it is: what cannot be seen is marked, and the direction of its letters changes nothing around it. */
export const SafeText = memo(function SafeText({ text, as = "exact", limit = SHOWN }: SafeTextProps): ReactNode {
  const [shown, setShown] = useState(limit);
  const cut = text.length > shown ? whole(text, shown) : text;
  const parts = useMemo(() => pieces(cut, as), [cut, as]);
  return (
    <bdi className={`safe-text safe-text-${as}`}>
      {parts.map((piece, index) => show(piece, index))}
      {cut.length < text.length && (
        <button type="button" className="text-more" onClick={() => setShown(shown + 5 * SHOWN)}>
          {(text.length - cut.length).toLocaleString("en")} more characters
        </button>
      )}
    </bdi>
  );
});

/** The beginning of a text, not cut within a character. */
export function whole(text: string, length: number): string {
  const code = text.charCodeAt(length - 1);
  return text.slice(0, code >= 0xd800 && code < 0xdc00 ? length - 1 : length);
}

function show(piece: Piece, index: number): ReactNode {
  if (piece.kind === "text") return piece.text;
  if (piece.kind === "lookalike") {
    return (
      <span key={index} className="text-lookalike" title={piece.name}>
        {piece.text}
      </span>
    );
  }
  return (
    <span key={index} className="text-mark" title={piece.name}>
      {piece.label}
    </span>
  );
}
