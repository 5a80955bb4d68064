/**
 * Markdown as elements. The parser's tokens become elements directly, never HTML, so that nothing in a text can become
 * markup: HTML in it is shown as it was written, links lead only where a reader can see, and images of other hosts are
 * links to them.
 */

import { Lexer, type Token, type Tokens } from "marked";
import { Fragment, memo, useMemo, useRef, type ReactNode } from "react";

import { type Block, GrowingBlocks, isAbsurd } from "./blocks.js";
import { Code } from "./code.js";
import { SafeText } from "./safe-text.js";

import "./text.css";

/** A block longer than this is shown as plain text: people do not write those, and parsers suffer. */
const LONGEST = 16 * 1024;

/** Characters of such a text that are shown at once. */
const SHOWN = 100_000;

export interface MarkdownProps {
  readonly text: string;
  /** Whether more of it is to come. */
  readonly streaming?: boolean;
}

/** Markdown, which may still grow: blocks that are finished are not drawn again. */
export const Markdown = memo(function Markdown({ text, streaming = false }: MarkdownProps): ReactNode {
  const growing = useRef<GrowingBlocks>(null);
  growing.current ??= new GrowingBlocks();
  const blocks = growing.current.of(text, !streaming);
  return (
    <div className="markdown" dir="auto">
      {blocks.map((block, index) => (
        <BlockView key={index} block={block} />
      ))}
    </div>
  );
});

const BlockView = memo(
  function BlockView({ block }: { readonly block: Block }): ReactNode {
    const tokens = useMemo(() => parse(block.raw), [block.raw]);
    if (tokens === undefined) return <PlainBlock text={block.raw} />;
    return <>{tokens.map((token, index) => blockOf(token, index))}</>;
  },
  (before, after) => before.block.raw === after.block.raw,
);

function PlainBlock({ text }: { readonly text: string }): ReactNode {
  return (
    <p className="markdown-plain">
      <SafeText text={text.trimEnd()} as="prose" limit={SHOWN} />
    </p>
  );
}

function parse(raw: string): Token[] | undefined {
  const fenced = /^ {0,3}(```|~~~)/.test(raw);
  if ((raw.length > LONGEST && !fenced) || isAbsurd(raw)) return undefined;
  try {
    return new Lexer({ gfm: true, breaks: false }).lex(raw);
  } catch {
    return undefined;
  }
}

function blockOf(token: Token, key: number): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      const { depth, tokens } = token as Tokens.Heading;
      // All of one level, below those of the page: a message may skip levels, and a page must not.
      return (
        <h3 key={key} className={`markdown-h${depth}`} dir="auto">
          {inline(tokens)}
        </h3>
      );
    }
    case "paragraph":
      return (
        <p key={key} dir="auto">
          {inline((token as Tokens.Paragraph).tokens)}
        </p>
      );
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return <Fragment key={key}>{tokens ? inline(tokens) : prose(text)}</Fragment>;
    }
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <Code key={key} text={text} language={lang?.split(/\s/)[0] ?? ""} />;
    }
    case "blockquote":
      return (
        <blockquote key={key} dir="auto">
          {(token as Tokens.Blockquote).tokens.map((each, index) => blockOf(each, index))}
        </blockquote>
      );
    case "list":
      return listOf(token as Tokens.List, key);
    case "table":
      return tableOf(token as Tokens.Table, key);
    case "hr":
      return <hr key={key} />;
    default:
      // HTML, and whatever a later parser may add: as it was written.
      return (
        <p key={key} className="markdown-plain">
          <SafeText text={token.raw.trimEnd()} as="prose" />
        </p>
      );
  }
}

function listOf(list: Tokens.List, key: number): ReactNode {
  const items = list.items.map((item, index) => (
    <li key={index} className={item.task ? "markdown-task" : undefined}>
      {item.task && (
        <input
          type="checkbox"
          checked={item.checked === true}
          readOnly
          disabled
          aria-label={item.checked ? "done" : "to do"}
        />
      )}
      {item.tokens.filter(({ type }) => type !== "checkbox").map((token, at) => blockOf(token, at))}
    </li>
  ));
  if (!list.ordered)
    return (
      <ul key={key} dir="auto">
        {items}
      </ul>
    );
  return (
    <ol key={key} dir="auto" start={typeof list.start === "number" ? list.start : 1}>
      {items}
    </ol>
  );
}

function tableOf(table: Tokens.Table, key: number): ReactNode {
  const align = (index: number): string | undefined => {
    const side = table.align[index];
    return side ? `markdown-${side}` : undefined;
  };
  return (
    <div key={key} className="markdown-table" role="region" aria-label="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {table.header.map((cell, index) => (
              <th key={index} className={align(index)} scope="col">
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, at) => (
            <tr key={at}>
              {row.map((cell, index) => (
                <td key={index} className={align(index)}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, key) => inlineOf(token, key));
}

function inlineOf(token: Token, key: number): ReactNode {
  switch (token.type) {
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return <Fragment key={key}>{tokens ? inline(tokens) : prose(text)}</Fragment>;
    }
    case "escape":
      return <Fragment key={key}>{prose((token as Tokens.Escape).text)}</Fragment>;
    case "strong":
      return <strong key={key}>{inline((token as Tokens.Strong).tokens)}</strong>;
    case "em":
      return <em key={key}>{inline((token as Tokens.Em).tokens)}</em>;
    case "del":
      return <del key={key}>{inline((token as Tokens.Del).tokens)}</del>;
    case "codespan":
      return (
        <code key={key}>
          <SafeText text={(token as Tokens.Codespan).text} />
        </code>
      );
    case "br":
      return <br key={key} />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      return (
        <Link key={key} href={href}>
          {inline(tokens)}
        </Link>
      );
    }
    case "image": {
      const { href, text } = token as Tokens.Image;
      return <Picture key={key} href={href} text={text} />;
    }
    case "html":
      if (/^<br\s*\/?>$/i.test(token.raw.trim())) return <br key={key} />;
      return <Fragment key={key}>{prose(token.raw)}</Fragment>;
    default:
      return <Fragment key={key}>{prose(token.raw)}</Fragment>;
  }
}

/** Most text has nothing to mark, and needs no element of its own then. */
function prose(text: string): ReactNode {
  // eslint-disable-next-line no-control-regex
  return /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]|\udb40/.test(text) ? (
    <SafeText text={text} as="prose" />
  ) : (
    text
  );
}

/** A link that opens elsewhere, if it is one that a browser may follow; else its text and its address. */
function Link({ href, children }: { readonly href: string; readonly children: ReactNode }): ReactNode {
  const url = followable(href);
  if (url === undefined) {
    return (
      <span className="markdown-dead-link">
        {children} (<SafeText text={href} limit={200} />)
      </span>
    );
  }
  return (
    <a href={url} target="_blank" rel="noopener noreferrer nofollow" title={url}>
      {children}
    </a>
  );
}

/** Images that came along with the text are shown; others are links, so that reading asks no other host for anything. */
function Picture({ href, text }: { readonly href: string; readonly text: string }): ReactNode {
  if (/^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/.test(href)) return <img src={href} alt={text} />;
  return <Link href={href}>{text === "" ? "image" : `image: ${text}`}</Link>;
}

/** An address that leads where it says: absolute, of the web or mail, and with no password in it. */
export function followable(href: string): string | undefined {
  try {
    const url = new URL(href);
    if (!["http:", "https:", "mailto:"].includes(url.protocol)) return undefined;
    return url.username === "" && url.password === "" ? url.href : undefined;
  } catch {
    return undefined;
  }
}
