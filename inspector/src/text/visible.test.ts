// @vitest-environment node
import { describe, expect, it } from "vitest";

import { pieces, spelledOut } from "./visible.js";

const marks = (text: string, as: "exact" | "prose" = "exact"): string[] =>
  pieces(text, as).flatMap((piece) => (piece.kind === "mark" ? [piece.name] : []));

describe("text in which nothing hides", () => {
  it("is together exactly the text", () => {
    const text = "a\u202eb\u0007c\u200bd" + " ".repeat(40) + "е-mail еvil\n\n\n\n\n\n\nend";
    expect(
      pieces(text)
        .map((piece) => piece.text)
        .join(""),
    ).toBe(text);
  });

  it("marks what reorders a line, in commands and in prose", () => {
    expect(marks("echo \u202etxt.exe")).toEqual(["right-to-left override"]);
    expect(marks("see \u2067this\u2069", "prose")).toEqual(["right-to-left isolate", "pop directional isolate"]);
  });

  it("marks control characters, but neither lines nor tabs", () => {
    expect(marks("a\u001b[2Jb\tc\nd\r")).toEqual(["escape", "carriage return"]);
  });

  it("marks what takes no room, in commands alone", () => {
    expect(marks("rm\u200b -rf\u00a0x")).toEqual(["zero width space", "no-break space"]);
    expect(marks("کتاب\u200cها", "prose")).toEqual([]);
  });

  it("shows how much a long run of spaces or empty lines hides", () => {
    expect(spelledOut(`ls${" ".repeat(300)}; rm -rf ~`)).toBe("ls␣×300; rm -rf ~");
    expect(spelledOut(`ls${"\n".repeat(100)}rm -rf ~`)).toBe("ls\n⏎×99\nrm -rf ~");
  });

  it("marks letters that look like others in a word that mixes them", () => {
    expect(pieces("sud\u043e ls").map(({ kind }) => kind)).toEqual(["lookalike", "text"]);
    expect(pieces("привет мир").map(({ kind }) => kind)).toEqual(["text"]);
    expect(pieces("\uff52\uff4d -rf").map(({ kind }) => kind)).toEqual(["lookalike", "text"]);
  });

  it("marks invisible tags", () => {
    expect(marks("hi\u{e0041}\u{e0042}", "prose")).toHaveLength(2);
  });
});
