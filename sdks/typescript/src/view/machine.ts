/** Follows the files and terminals that the server provides to an agent (pure). */

import { EventIds } from "./event-ids.js";
import { type Json, textAt } from "./json.js";
import type { FileWrite, OpenCall, TerminalView } from "./session-view.js";
import { newTerminal, terminalChange } from "./working.js";

type ByName<Value> = Readonly<Record<string, Value>>;

/** The terminals after the answer to a call. */
export function terminalsAfter(
  terminals: ByName<TerminalView>,
  call: OpenCall,
  result: Json,
  event: number,
): ByName<TerminalView> {
  const terminalId = textAt(call.method === "terminal/create" ? result : call.params, "terminalId");
  if (terminalId === undefined) return terminals;
  const known = own(terminals, terminalId) ?? newTerminal(terminalId, call);
  const changed = { ...known, ...terminalChange(call.method, result), events: known.events.with(event) };
  return { ...terminals, [terminalId]: changed };
}

/** A file that the agent wants to be written; none when the request is not complete. */
export function writesOf(
  { id, at }: { readonly id: number; readonly at: string },
  params: Json,
  turnKey: string,
  texts: ByName<string>,
): readonly FileWrite[] {
  const [path, newText] = [textAt(params, "path"), textAt(params, "content")];
  if (path === undefined || newText === undefined) return [];
  return [{ path, oldText: own(texts, path), newText, turnKey, done: undefined, at, events: EventIds.of(id) }];
}

/** The writes after the answer to one of them. */
export function writesAfter(
  writes: readonly FileWrite[],
  request: number,
  answer: number,
  done: boolean,
): readonly FileWrite[] {
  return writes.map((write) =>
    write.events.first === request ? { ...write, done, events: write.events.with(answer) } : write,
  );
}

/** The known texts of files after one was read or written. */
export function textsAfter(texts: ByName<string>, params: Json, written: Json): ByName<string> {
  const [path, text] = [textAt(params, "path"), textAt(written, "content")];
  return path === undefined || text === undefined ? texts : { ...texts, [path]: text };
}

/** A value that a record really has: names that others chose may be those of every object. */
function own<Value>(record: ByName<Value>, name: string): Value | undefined {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}
