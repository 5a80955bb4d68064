/** Where the SDK reports what it recovered from, and failures that no call can raise. */

/** What takes reports: `console`, or anything like it. */
export interface Logger {
  /** Something was recovered from, or is not as it should be. */
  warn(message: string, ...details: unknown[]): void;
  /** Something went wrong that is reported nowhere else. */
  error(message: string, ...details: unknown[]): void;
}
