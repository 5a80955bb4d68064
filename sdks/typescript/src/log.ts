/** Where the SDK reports what it recovered from, and failures that no call can raise. */

/** Receives log reports: `console`, or a similar object. */
export interface Logger {
  /** A failure that the SDK recovered from, or an unexpected state. */
  warn(message: string, ...details: unknown[]): void;
  /** A failure that is reported nowhere else. */
  error(message: string, ...details: unknown[]): void;
}
