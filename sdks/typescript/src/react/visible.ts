/** Makes characters visible that would hide or turn around what a person is asked to allow. */

import type { CSSProperties } from "react";

/** Control characters but line breaks and tabs, and characters that change the direction of text or have no width. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A text of an agent as plain text: hidden characters are shown by their numbers. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (hidden) => `‹U+${hidden.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

/** A value as text: a text as it is, anything else as JSON. */
export function textFor(value: unknown): string {
  return visible(typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));
}

/** The style of a text that only screen readers say. */
export const UNSEEN: CSSProperties = {
  position: "absolute",
  width: "1px",
  height: "1px",
  overflow: "hidden",
  clipPath: "inset(50%)",
  whiteSpace: "nowrap",
};
