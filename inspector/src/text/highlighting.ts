/**
 * Colours of code. The highlighter and each language are loaded when code in it is first shown.
 *
 * The highlighter gives HTML of spans; here it becomes lines of coloured pieces, and no HTML reaches the page.
 */

import type { HLJSApi, LanguageFn } from "highlight.js";

/** A piece of a line with the classes of its colour. */
export interface Coloured {
  readonly text: string;
  readonly classes: string;
}

type Loaded = { readonly default: LanguageFn };

const LANGUAGES: Readonly<Record<string, () => Promise<Loaded>>> = {
  bash: () => import("highlight.js/lib/languages/bash"),
  c: () => import("highlight.js/lib/languages/c"),
  cpp: () => import("highlight.js/lib/languages/cpp"),
  csharp: () => import("highlight.js/lib/languages/csharp"),
  css: () => import("highlight.js/lib/languages/css"),
  diff: () => import("highlight.js/lib/languages/diff"),
  dockerfile: () => import("highlight.js/lib/languages/dockerfile"),
  go: () => import("highlight.js/lib/languages/go"),
  ini: () => import("highlight.js/lib/languages/ini"),
  java: () => import("highlight.js/lib/languages/java"),
  javascript: () => import("highlight.js/lib/languages/javascript"),
  json: () => import("highlight.js/lib/languages/json"),
  kotlin: () => import("highlight.js/lib/languages/kotlin"),
  markdown: () => import("highlight.js/lib/languages/markdown"),
  php: () => import("highlight.js/lib/languages/php"),
  python: () => import("highlight.js/lib/languages/python"),
  ruby: () => import("highlight.js/lib/languages/ruby"),
  rust: () => import("highlight.js/lib/languages/rust"),
  scss: () => import("highlight.js/lib/languages/scss"),
  sql: () => import("highlight.js/lib/languages/sql"),
  swift: () => import("highlight.js/lib/languages/swift"),
  typescript: () => import("highlight.js/lib/languages/typescript"),
  xml: () => import("highlight.js/lib/languages/xml"),
  yaml: () => import("highlight.js/lib/languages/yaml"),
};

const ALIASES: Readonly<Record<string, string>> = {
  cc: "cpp",
  cs: "csharp",
  "c++": "cpp",
  docker: "dockerfile",
  golang: "go",
  h: "c",
  hpp: "cpp",
  htm: "xml",
  html: "xml",
  jsonc: "json",
  js: "javascript",
  jsx: "javascript",
  kt: "kotlin",
  md: "markdown",
  mjs: "javascript",
  patch: "diff",
  py: "python",
  rb: "ruby",
  rs: "rust",
  sh: "bash",
  shell: "bash",
  svg: "xml",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  vue: "xml",
  yml: "yaml",
  zsh: "bash",
  console: "bash",
};

/** Colouring more than this would be felt. */
const LONGEST = 200_000;

let core: Promise<HLJSApi> | undefined;
const loading = new Map<string, Promise<void>>();

/** The language of a name such as `ts`, or of a path by its ending; undefined for one that has no colours here. */
export function languageOf(name: string): string | undefined {
  const ending = name.slice(Math.max(name.lastIndexOf("/"), name.lastIndexOf(".")) + 1).toLowerCase();
  const language = ALIASES[ending] ?? ending;
  return Object.hasOwn(LANGUAGES, language) ? language : undefined;
}

/** The lines of a code in colours; undefined when there are none to be had. */
export async function colouredLines(text: string, language: string): Promise<Coloured[][] | undefined> {
  const load = LANGUAGES[language];
  if (load === undefined || text.length > LONGEST) return undefined;
  core ??= import("highlight.js/lib/core").then((module) => module.default);
  const highlighter = await core;
  let loaded = loading.get(language);
  if (loaded === undefined) {
    loaded = load().then((module) => highlighter.registerLanguage(language, module.default));
    loading.set(language, loaded);
  }
  await loaded;
  return linesOf(highlighter.highlight(text, { language, ignoreIllegals: true }).value);
}

const ENTITIES: Readonly<Record<string, string>> = {
  "&amp;": "&",
  "&lt;": "<",
  "&gt;": ">",
  "&quot;": '"',
  "&#x27;": "'",
};

/** The highlighter's HTML as lines; spans that go over several lines are on each of them. */
export function linesOf(html: string): Coloured[][] {
  const lines: Coloured[][] = [[]];
  const open: string[] = [];
  for (const part of html.split(/(<span class="[^"]*">|<\/span>)/)) {
    if (part === "</span>") open.pop();
    else if (part.startsWith('<span class="')) open.push(part.slice(13, -2));
    else {
      const text = part.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity] as string);
      text.split("\n").forEach((piece, index) => {
        if (index > 0) lines.push([]);
        if (piece !== "") (lines.at(-1) as Coloured[]).push({ text: piece, classes: open.join(" ") });
      });
    }
  }
  return lines;
}
