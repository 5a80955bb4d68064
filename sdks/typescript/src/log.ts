/** Where the SDK reports what it recovered from, and what went wrong where nobody could be told. */

/** What takes reports: `console`, or anything like it. */
export interface Logger {
  /** Something was recovered from, or is not as it should be. */
  warn(message: string, ...details: unknown[]): void;
  /** Something went wrong that nobody else is told of. */
  error(message: string, ...details: unknown[]): void;
}
