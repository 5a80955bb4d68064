/** A search on the server: each match as it is found. */

import { linesOf } from "./bytes.js";
import { ConnectionLost } from "./errors.js";
import type { Http, HttpCall } from "./http.js";

/** A file, or a line of it. */
export interface Match {
  /** Absolute. */
  readonly path: string;
  /** The number of the line, from 1. */
  readonly line?: number;
  /** The column of the match, from 1, in characters. */
  readonly column?: number;
  /** The line. */
  readonly text?: string;
  /** The line is longer than the text shown here. */
  readonly textTruncated?: boolean;
}

/** The search terms: `text`, `name` or both. */
export interface SearchOptions {
  /** The text to find in lines. */
  readonly text?: string;
  /** A part of a file's name, or a glob. */
  readonly name?: string;
  /** The text is a regular expression. */
  readonly regex?: boolean;
  /** `smart` unless given: a capital in the text makes it matter. */
  readonly case?: "smart" | "sensitive" | "ignore";
  /** Whether to search names with a dot in front. */
  readonly hidden?: boolean;
  /** Whether to search files that `.gitignore` and similar files exclude. */
  readonly ignored?: boolean;
  /** The maximum number of results. */
  readonly limit?: number;
}

type Line = Partial<Match> & { readonly truncated?: boolean; readonly reason?: string };

/** The matches, in no order. Begins with the loop, and ends on the server when that is left. */
export class Search implements AsyncIterable<Match> {
  readonly #http: Http;
  readonly #query: NonNullable<HttpCall["query"]>;
  #truncated = false;
  #reason: string | undefined;

  /** @internal */
  constructor(http: Http, query: NonNullable<HttpCall["query"]>) {
    this.#http = http;
    this.#query = query;
  }

  /** Whether there may be more than was found; known after the loop. */
  get truncated(): boolean {
    return this.#truncated;
  }

  /** The limit that ended it early: `results`, `bytes`, `time` or `lines`. */
  get reason(): string | undefined {
    return this.#reason;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Match, void, undefined> {
    const headers = { Accept: "application/x-ndjson" };
    const response = await this.#http.send("GET", "/v1/fs/search", { query: this.#query, headers });
    for await (const text of linesOf(this.#http, response)) {
      const line = JSON.parse(text) as Line;
      if (line.path === undefined) {
        this.#truncated = line.truncated ?? false;
        this.#reason = line.reason;
        return;
      }
      yield line as Match;
    }
    throw new ConnectionLost(`${this.#http.url} ended its answer before the search had ended`);
  }
}
