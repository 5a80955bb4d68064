/** A piece of code, in colours as soon as they are there. */

import { Fragment, memo, useEffect, useState, type ReactNode } from "react";

import { CopyButton } from "./copy-button.js";
import { type Coloured, colouredLines, languageOf } from "./highlighting.js";
import { SafeText, whole } from "./safe-text.js";
import { spelledOut } from "./visible.js";

import "./text.css";

export interface CodeProps {
  readonly text: string;
  /** As the text names it: `ts`, `python`; or a path, by its ending. */
  readonly language?: string;
  /** What a screen reader calls it. */
  readonly label?: string;
  /** What stands above it, when the label is on the screen already. */
  readonly caption?: string;
}

/** As much of a language or a label as is shown. */
const NAMED = { language: 40, label: 200 } as const;

/** Code with its language and a button that copies it. */
export const Code = memo(function Code({ text, language = "", label, caption }: CodeProps): ReactNode {
  const lines = useColours(text, language);
  const name = label === undefined ? whole(language, NAMED.language) : whole(label, NAMED.label);
  return (
    <figure className="code">
      <figcaption className="code-head">
        <span className="code-language">
          <SafeText text={caption ?? (name === "" ? "text" : name)} />
        </span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0} aria-label={label === undefined ? `code ${spelledOut(name)}`.trim() : spelledOut(name)} dir="ltr">
        <code>
          {lines === undefined ? (
            <SafeText text={text} />
          ) : (
            lines.map((line, index) => <ColouredLine key={index} line={line} last={index === lines.length - 1} />)
          )}
        </code>
      </pre>
    </figure>
  );
});

function ColouredLine({ line, last }: { readonly line: readonly Coloured[]; readonly last: boolean }): ReactNode {
  return (
    <>
      <ColouredPieces line={line} />
      {last ? "" : "\n"}
    </>
  );
}

/** The pieces of one line. */
export function ColouredPieces({ line }: { readonly line: readonly Coloured[] }): ReactNode {
  return line.map(({ text, classes }, index) =>
    classes === "" ? (
      <Fragment key={index}>
        <Exact text={text} />
      </Fragment>
    ) : (
      <span key={index} className={classes}>
        <Exact text={text} />
      </span>
    ),
  );
}

/** Plain ASCII needs no marks, and is nearly all of code. */
function Exact({ text }: { readonly text: string }): ReactNode {
  return /^[\t\n\u0020-\u007e]*$/.test(text) && !/ {17,}/.test(text) ? text : <SafeText text={text} />;
}

/** The lines of a code in colours, once they are known. */
export function useColours(text: string, language: string): readonly (readonly Coloured[])[] | undefined {
  const [found, setFound] = useState<{ text: string; lines: Coloured[][] | undefined }>();
  const known = languageOf(language);
  useEffect(() => {
    if (known === undefined) return undefined;
    let current = true;
    const set = (lines: Coloured[][] | undefined): void => {
      if (current) setFound({ text, lines });
    };
    // Without colours it can be read as well.
    colouredLines(text, known).then(set, () => set(undefined));
    return () => {
      current = false;
    };
  }, [text, known]);
  return known !== undefined && found?.text === text ? found.lines : undefined;
}
