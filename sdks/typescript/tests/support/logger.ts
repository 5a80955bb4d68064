/** Loggers for tests: one that says nothing, and one that remembers. */

import type { Logger } from "sandboxagent";

/** Says nothing. */
export const quiet: Logger = { warn: () => undefined, error: () => undefined };

/** Remembers what was said. */
export class Remembering implements Logger {
  readonly warnings: string[] = [];
  readonly errors: string[] = [];

  warn(message: string): void {
    this.warnings.push(message);
  }

  error(message: string): void {
    this.errors.push(message);
  }
}
