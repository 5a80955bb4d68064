/**
 * Looks for a protocol implementation in sources: envelopes made or read, ids kept, ACP's types written down once more.
 *
 * Goes by syntax and by types, not by names of variables, so that it finds what is called otherwise.
 */

import { basename } from "node:path";

import ts from "typescript";

/** What was found, and where. */
export interface Finding {
  readonly rule:
    | "makes an envelope"
    | "reads an envelope"
    | "uses the wire"
    | "uses upstream's insides"
    | "keeps ids"
    | "copies a type of ACP";
  readonly file: string;
  readonly text: string;
}

const UPSTREAM = "@agentclientprotocol/sdk";
const ENVELOPES = new Set(["AnyMessage", "AnyRequest", "AnyResponse", "AnyNotification"]);

/** Everything in the sources that could be part of a protocol implementation. */
export function findings(program: ts.Program, sources: readonly ts.SourceFile[]): Finding[] {
  const checker = program.getTypeChecker();
  const found: Finding[] = [];
  for (const source of sources) {
    const file = basename(source.fileName);
    const report = (rule: Finding["rule"], node: ts.Node): void => {
      found.push({ rule, file, text: node.getText(source).slice(0, 100) });
    };
    const visit = (node: ts.Node): void => {
      if (isText(node) && /jsonrpc/.test(node.text)) report("makes an envelope", node);
      if (ts.isPropertyAssignment(node) && ts.isIdentifier(node.name) && node.name.text === "jsonrpc")
        report("makes an envelope", node);
      if (ts.isShorthandPropertyAssignment(node) && node.name.text === "jsonrpc") report("makes an envelope", node);
      if (readsEnvelope(node, checker)) report("reads an envelope", node);
      if (isText(node) && /\/v1\/rpc/.test(node.text)) report("uses the wire", node);
      if (ts.isImportDeclaration(node)) imports(node, report);
      if (isMapOfIds(node, checker)) report("keeps ids", node);
      ts.forEachChild(node, visit);
    };
    visit(source);
    for (const copy of copies(source, program, checker)) found.push({ rule: "copies a type of ACP", file, text: copy });
  }
  return found;
}

function isText(node: ts.Node): node is ts.StringLiteralLike | ts.TemplateLiteralLikeNode {
  return (
    ts.isStringLiteralLike(node) || ts.isTemplateHead(node) || ts.isTemplateMiddle(node) || ts.isTemplateTail(node)
  );
}

/** A member that is taken from, or looked for in, something that upstream calls a message. */
function readsEnvelope(node: ts.Node, checker: ts.TypeChecker): boolean {
  if (ts.isPropertyAccessExpression(node) || ts.isElementAccessExpression(node))
    return isEnvelope(node.expression, checker);
  if (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.InKeyword)
    return isEnvelope(node.right, checker);
  if (ts.isVariableDeclaration(node) && ts.isObjectBindingPattern(node.name) && node.initializer)
    return isEnvelope(node.initializer, checker);
  return false;
}

function isEnvelope(expression: ts.Expression, checker: ts.TypeChecker): boolean {
  const type = checker.getTypeAtLocation(expression);
  const parts = type.isUnion() ? type.types : [type];
  return [type, ...parts].some((part) => part.aliasSymbol !== undefined && ENVELOPES.has(part.aliasSymbol.name));
}

function imports(node: ts.ImportDeclaration, report: (rule: Finding["rule"], node: ts.Node) => void): void {
  const from = (node.moduleSpecifier as ts.StringLiteral).text;
  if (from === "./link.js") report("uses the wire", node);
  if (from.startsWith("zod") || (from.startsWith(UPSTREAM) && from !== UPSTREAM))
    report("uses upstream's insides", node);
  if (from !== UPSTREAM || node.importClause?.isTypeOnly) return;
  const { namedBindings } = node.importClause ?? {};
  if (!namedBindings || !ts.isNamedImports(namedBindings)) {
    report("uses upstream's insides", node);
    return;
  }
  for (const element of namedBindings.elements) {
    // The one value that says nothing of a protocol: the class of its errors.
    if (element.isTypeOnly || (element.propertyName ?? element.name).text === "RequestError") continue;
    report("uses upstream's insides", element);
  }
}

/** A map by what an id of JSON-RPC is: a string, a number or null. */
function isMapOfIds(node: ts.Node, checker: ts.TypeChecker): boolean {
  if (!ts.isNewExpression(node) && !ts.isPropertyDeclaration(node) && !ts.isVariableDeclaration(node)) return false;
  const type = checker.getTypeAtLocation(node) as ts.TypeReference;
  if (type.symbol?.name !== "Map" && type.symbol?.name !== "Set") return false;
  const [key] = checker.getTypeArguments(type);
  const parts = key?.isUnion() ? key.types : [];
  const flags = parts.reduce((all, part) => all | part.flags, 0);
  return Boolean(flags & ts.TypeFlags.String && flags & ts.TypeFlags.Number);
}

/** Our own types that are, member by member, one of upstream's. */
function copies(source: ts.SourceFile, program: ts.Program, checker: ts.TypeChecker): string[] {
  const theirs = upstreamTypes(program, checker);
  const found: string[] = [];
  ts.forEachChild(source, (node) => {
    if (!ts.isInterfaceDeclaration(node) && !(ts.isTypeAliasDeclaration(node) && ts.isTypeLiteralNode(node.type)))
      return;
    if (node.typeParameters) return;
    const own = checker.getTypeAtLocation(node.name);
    if (required(own) < 2) return;
    for (const [name, type] of theirs) {
      if (checker.isTypeAssignableTo(own, type) && checker.isTypeAssignableTo(type, own))
        found.push(`${node.name.text} is ${name}`);
    }
  });
  return found;
}

function upstreamTypes(program: ts.Program, checker: ts.TypeChecker): Map<string, ts.Type> {
  const module = program.getSourceFiles().find((file) => /v1\/stable\/acp\.d\.ts$/.test(file.fileName));
  const symbol = module && checker.getSymbolAtLocation(module);
  const types = new Map<string, ts.Type>();
  for (const each of symbol ? checker.getExportsOfModule(symbol) : []) {
    const target = each.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(each) : each;
    if (!(target.flags & (ts.SymbolFlags.TypeAlias | ts.SymbolFlags.Interface))) continue;
    const type = checker.getDeclaredTypeOfSymbol(target);
    if (type.flags & ts.TypeFlags.Object && required(type) >= 2) types.set(each.name, type);
  }
  return types;
}

function required(type: ts.Type): number {
  return type.getProperties().filter((property) => !(property.flags & ts.SymbolFlags.Optional)).length;
}
