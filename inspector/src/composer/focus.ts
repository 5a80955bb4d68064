/** The session whose composer is to have the focus as soon as it is there: one that the person has just made. */

let wanted: string | undefined;

export function focusComposer(sessionId: string): void {
  wanted = sessionId;
}

/** Whether this composer is to have it; once. */
export function takeFocus(sessionId: string): boolean {
  if (wanted !== sessionId) return false;
  wanted = undefined;
  return true;
}
