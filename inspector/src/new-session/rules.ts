/** Permission rules as a person enters them, and as the server takes them. */

export const ACTIONS = ["allow", "ask", "reject"] as const;
export const SUBJECTS = ["command", "path", "tool", "kind"] as const;

export interface DraftRule {
  readonly id: number;
  readonly action: (typeof ACTIONS)[number];
  readonly subject: (typeof SUBJECTS)[number];
  readonly value: string;
}

/** The rules that say something, in order. */
export function rulesOf(drafts: readonly DraftRule[]): Record<string, unknown>[] {
  return drafts
    .filter(({ value }) => value.trim() !== "")
    .map(({ action, subject, value }) => ({ [subject]: value.trim(), action }));
}
