/**
 * Writes docs/reference/typescript.md from the declarations of the built package.
 *
 *     node scripts/reference.mjs           write the page
 *     node scripts/reference.mjs --print   print it instead
 */

import { writeFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";

import ts from "typescript";

const INDEX = fileURLToPath(new URL("../dist/index.d.ts", import.meta.url));
const REACT = fileURLToPath(new URL("../dist/react/index.d.ts", import.meta.url));
const PAGE = fileURLToPath(new URL("../../../docs/reference/typescript.md", import.meta.url));

/** Which modules stand together. */
const GROUPS = {
  "A server": ["client", "connection", "embedded", "fleet"],
  "Sessions and turns": ["sessions", "inventory", "session", "turn", "following", "iteration", "past"],
  "What happens in a session": ["updates"],
  "The view of a session": ["session-view", "reducer", "event-ids"],
  "What agents ask": ["requests", "asking"],
  "Agents and installs": ["agents"],
  Files: ["files", "bytes", "search", "watch"],
  Errors: ["errors"],
  "React: `sandboxagent/react`": ["client-context", "hooks", "session-store", "messages", "diff", "request-cards"],
  "Under the surface": ["connection", "stream", "http", "socket", "log"],
};

const HEAD = `<!-- Written by \`node sdks/typescript/scripts/reference.mjs\`; change the comments in the code. -->

# TypeScript SDK

All that the package \`sandboxagent\` exports, and \`sandboxagent/react\`. Values from the server are those at the time
of the call. Types such as \`SessionUpdate\` are those of \`@agentclientprotocol/sdk\` ([typescript-sdk]), and so is
\`RequestError\`, with which a method of ACP that fails rejects.

[typescript-sdk]: https://github.com/agentclientprotocol/typescript-sdk
`;

const program = ts.createProgram([INDEX, REACT], {
  module: ts.ModuleKind.NodeNext,
  target: ts.ScriptTarget.ES2022,
  lib: ["lib.es2023.d.ts", "lib.esnext.disposable.d.ts", "lib.dom.d.ts", "lib.dom.asynciterable.d.ts"],
  types: ["node"],
  strict: true,
});
const checker = program.getTypeChecker();

function main() {
  const page = pageText();
  if (process.argv.includes("--print")) process.stdout.write(page);
  else writeFileSync(PAGE, page);
}

function pageText() {
  const [index, react] = [INDEX, REACT].map((file) => checker.getSymbolAtLocation(program.getSourceFile(file)));
  const groups = new Map(Object.keys(GROUPS).map((title) => [title, []]));
  const upstream = [];
  for (const symbol of [...checker.getExportsOfModule(index), ...checker.getExportsOfModule(react)]) {
    const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    const [declaration] = target.declarations;
    const file = declaration.getSourceFile().fileName;
    if (file.includes("node_modules")) upstream.push(symbol.name);
    else groups.get(groupOf(basename(file, ".d.ts"))).push(target);
  }
  for (const [title, symbols] of groups) symbols.sort((one, other) => place(title, one) - place(title, other));
  const parts = [HEAD];
  for (const [title, symbols] of groups) parts.push(contents(title, symbols));
  parts.push(
    `From upstream: ${upstream
      .sort()
      .map((name) => `\`${name}\``)
      .join(", ")}.\n`,
  );
  for (const [title, symbols] of groups) parts.push(`## ${title}\n`, ...symbols.map(entry));
  return parts.join("\n");
}

/** Modules in the order of their group, and in them as they are written. */
function place(title, symbol) {
  const [declaration] = symbol.declarations;
  const module = basename(declaration.getSourceFile().fileName, ".d.ts");
  return GROUPS[title].indexOf(module) * 1_000_000 + declaration.pos;
}

function groupOf(module) {
  const found = Object.entries(GROUPS).find(([, modules]) => modules.includes(module));
  if (!found) throw new Error(`${module} is in no group of scripts/reference.mjs`);
  return found[0];
}

function contents(title, symbols) {
  const rows = symbols.map(
    (symbol) => `| [\`${symbol.name}\`](#${symbol.name.toLowerCase()}) | ${cell(summary(symbol))} |`,
  );
  return [`| ${title} | what it is |`, "|---|---|", ...rows, ""].join("\n");
}

function entry(symbol) {
  const [declaration] = symbol.declarations;
  const parts = [`### ${symbol.name}\n`, `${doc(symbol)}\n`];
  if (ts.isClassDeclaration(declaration)) parts.push(...classParts(symbol, declaration));
  else if (ts.isInterfaceDeclaration(declaration)) parts.push(...interfaceParts(declaration));
  else parts.push(code(signature(declaration)));
  return parts.join("\n");
}

function classParts(symbol, declaration) {
  const members = declaration.members.filter(isShown);
  const fields = members.filter((member) => ts.isPropertyDeclaration(member) || ts.isGetAccessorDeclaration(member));
  const methods = new Map();
  for (const member of members.filter(ts.isMethodDeclaration)) {
    const name = member.name.getText();
    methods.set(name, [...(methods.get(name) ?? []), member]);
  }
  const parts = heritage(declaration);
  if (fields.length > 0) parts.push(table(fields));
  for (const [name, overloads] of methods) {
    parts.push(`#### ${symbol.name}.${name}\n`, code(overloads.map(signature).join("\n")), `${docOf(overloads)}\n`);
  }
  return parts;
}

function interfaceParts(declaration) {
  const members = declaration.members.filter(
    (member) => ts.isPropertySignature(member) || ts.isMethodSignature(member),
  );
  return [...heritage(declaration), ...(members.length > 0 ? [table(members)] : [])];
}

function heritage(declaration) {
  const names = (declaration.heritageClauses ?? []).flatMap(({ types }) =>
    types.map((type) => `\`${type.getText()}\``),
  );
  return names.length > 0 ? [`Is also ${names.join(", ")}.\n`] : [];
}

/** Members of one's own, or of the symbols that everybody knows, are not told; nor what is only for the package. */
function isShown(member) {
  if (ts.isConstructorDeclaration(member) || !member.name || ts.isPrivateIdentifier(member.name)) return false;
  if (ts.isComputedPropertyName(member.name) || member.name.getText() === "name") return false;
  if (ts.getCombinedModifierFlags(member) & (ts.ModifierFlags.Private | ts.ModifierFlags.Protected)) return false;
  return !ts.getJSDocTags(member).some(({ tagName }) => tagName.text === "internal");
}

function table(members) {
  const rows = members.map((member) => {
    const optional = member.questionToken ? "?" : "";
    const type = (member.type ? member.type.getText() : "").replaceAll(/\s+/g, " ");
    return `| \`${member.name.getText()}${optional}\` | \`${cell(type)}\` | ${cell(docOf([member])) || "–"} |`;
  });
  return ["| field | type | what it means |", "|---|---|---|", ...rows, ""].join("\n");
}

function signature(declaration) {
  const text = declaration.getText().replace(/^export (declare )?/, "");
  // Comments inside have their say elsewhere, or would say it twice.
  return text.replaceAll(/\/\*\*[\s\S]*?\*\/\s*/g, "").replaceAll(/\breadonly (?!\w+\[)/g, "");
}

function code(text) {
  return `\`\`\`dts\n${text}\n\`\`\`\n`;
}

function summary(symbol) {
  return doc(symbol).split("\n\n")[0];
}

function doc(symbol) {
  return docOf(symbol.declarations);
}

function docOf(declarations) {
  for (const declaration of declarations) {
    const [comment] = ts.getJSDocCommentsAndTags(declaration).filter(ts.isJSDoc);
    if (!comment) continue;
    const text = ts.getTextOfJSDocComment(comment.comment) ?? "";
    const throws = (comment.tags ?? []).filter(({ tagName }) => tagName.text === "throws");
    // The compiler takes the first word of it for a type.
    const told = throws.map((tag) =>
      tag
        .getText()
        .replace(/^@throws\s+/, "")
        .replaceAll(/\s*\n\s*\*?\s*/g, " ")
        .trim(),
    );
    return [text, ...told.map((each) => `Throws ${each}`)].filter(Boolean).join("\n\n");
  }
  return "";
}

function cell(text) {
  return text.replaceAll(/\s*\n\s*/g, " ").replaceAll("|", "\\|");
}

main();
