/** What was typed and not sent, for each session: it survives a reload. */

export interface Draft {
  readonly text: string;
  /** Files that are on the server already. */
  readonly attachments: readonly { readonly path: string; readonly name: string }[];
}

export const EMPTY: Draft = { text: "", attachments: [] };
const LONGEST = 200_000;

export function readDraft(sessionId: string): Draft {
  try {
    const found = JSON.parse(localStorage.getItem(nameOf(sessionId)) ?? "null") as Partial<Draft> | null;
    if (typeof found?.text !== "string" || !Array.isArray(found.attachments)) return EMPTY;
    const attachments = found.attachments.filter(
      (each) => typeof each?.path === "string" && typeof each.name === "string",
    );
    return { text: found.text, attachments };
  } catch {
    return EMPTY;
  }
}

export function keepDraft(sessionId: string, draft: Draft): void {
  try {
    const isEmpty = draft.text === "" && draft.attachments.length === 0;
    if (isEmpty || draft.text.length > LONGEST) localStorage.removeItem(nameOf(sessionId));
    else localStorage.setItem(nameOf(sessionId), JSON.stringify(draft));
  } catch {
    // A browser that keeps nothing: the draft lasts as long as the page.
  }
}

function nameOf(sessionId: string): string {
  return `inspector.draft.${sessionId}`;
}
