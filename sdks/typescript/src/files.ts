/**
 * Files of the server's machine: read, written, moved, searched, watched, and whole directories at once.
 *
 * A path is absolute, or relative to the session's directory, or else to the server's root directory. A failure
 * is a ServerProblem, such as `file-not-found`, with the path in `fields`.
 */

import { type Data, piecesOf, sendable } from "./bytes.js";
import { InvalidCall, foreign } from "./errors.js";
import type { Where } from "./fleet.js";
import type { Http, HttpCall } from "./http.js";
import { Search, type SearchOptions } from "./search.js";
import { Watch } from "./watch.js";

/** A file, a directory or a link. */
export interface Entry {
  /** Its own name. */
  readonly name: string;
  /** Absolute. */
  readonly path: string;
  /** Its kind. */
  readonly entryType: "file" | "directory" | "symlink" | "other";
  /** In bytes. */
  readonly size: number;
  /** UTC, ISO 8601 with milliseconds. */
  readonly modified: string;
  /** Permissions, in octal: `0644`. */
  readonly mode: string;
  /** Of a file: names this version of it, for `ifMatch`. */
  readonly etag?: string;
  /** Of a link: its target, which need not exist. */
  readonly linkTarget?: string;
}

/** A file that was written. */
export interface Written {
  /** Absolute. */
  readonly path: string;
  /** Its size in bytes. */
  readonly bytesWritten: number;
  /** Its checksum. */
  readonly sha256: string;
  /** Names this version of it, for `ifMatch`. */
  readonly etag: string;
}

/** The result of unpacking an archive. */
export interface Uploaded {
  /** The first of the files and links that were written. */
  readonly paths: readonly string[];
  /** Whether there are more than `paths` has. */
  readonly truncated: boolean;
}

/** The bytes of a file from `start` to before `end`. */
export interface ByteRange {
  /** The first byte, from 0. */
  readonly start?: number;
  /** The byte after the last. */
  readonly end?: number;
}

/** Files of the server's machine; those of a session have paths relative to its directory. */
export class Files {
  readonly #http: Http;
  readonly #where: Where;

  /** @internal */
  constructor(http: Http, where: Where = {}) {
    this.#http = http;
    this.#where = where;
  }

  /** Files of one node of a fleet; a gateway has to know which one when there are several. */
  ofNode(node: string): Files {
    return new Files(this.#http, { node });
  }

  /** A file's content, or a part of it. */
  async read(path: string, range: ByteRange = {}): Promise<Uint8Array> {
    const response = await this.#content(path, range);
    try {
      return new Uint8Array(await response.arrayBuffer());
    } catch (error) {
      throw this.#http.lost(error, undefined, true);
    }
  }

  /** A file's content as text in UTF-8. */
  async readText(path: string): Promise<string> {
    return new TextDecoder().decode(await this.read(path));
  }

  /** A file's content as it arrives, or a part of it. */
  async *stream(path: string, range: ByteRange = {}): AsyncGenerator<Uint8Array, void, undefined> {
    yield* piecesOf(this.#http, await this.#content(path, range));
  }

  /**
   * Writes a file, whole or not at all, with the directories on its way.
   *
   * `ifMatch` is the etag that the old file must have; with `ifNoneMatch: "*"` there must be none. Else it is a
   * ServerProblem, `file-changed`.
   */
  async write(path: string, data: Data, conditions: { ifMatch?: string; ifNoneMatch?: "*" } = {}): Promise<Written> {
    const headers: Record<string, string> = { "Content-Type": "application/octet-stream" };
    if (conditions.ifMatch !== undefined) headers["If-Match"] = conditions.ifMatch;
    if (conditions.ifNoneMatch !== undefined) headers["If-None-Match"] = conditions.ifNoneMatch;
    const body = await sendable(data);
    return await this.#http.json<Written>("PUT", "/v1/fs/file", { query: this.#at(path), headers, body });
  }

  /** A directory's entries, by name. */
  async *list(path = "."): AsyncGenerator<Entry, void, undefined> {
    let cursor: string | undefined;
    do {
      const query = { ...this.#at(path), cursor };
      const page = await this.#http.read<{ entries: Entry[]; nextCursor?: string }>("/v1/fs/entries", query);
      yield* page.entries;
      cursor = page.nextCursor;
    } while (cursor !== undefined);
  }

  /** A file, a directory or, with `follow: false`, a link itself. */
  async stat(path: string, options: { follow?: boolean } = {}): Promise<Entry> {
    return await this.#http.read<Entry>("/v1/fs/stat", { ...this.#at(path), ...options });
  }

  /** Makes a directory, including parents; it may exist already. Returns its absolute path. */
  async mkdir(path: string): Promise<string> {
    return (await this.#http.json<{ path: string }>("POST", "/v1/fs/mkdir", { query: this.#at(path) })).path;
  }

  /** Renames or moves something; the new parent directory must exist. Returns the new absolute path. */
  async move(from: string, to: string, options: { overwrite?: boolean } = {}): Promise<string> {
    const call: HttpCall = {
      query: this.#where,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ from, to, ...options }),
    };
    return (await this.#http.json<{ to: string }>("POST", "/v1/fs/move", call)).to;
  }

  /** Deletes a file, a link, or a directory; a directory that is not empty needs `recursive`. */
  async delete(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    await this.#http.json("DELETE", "/v1/fs/entry", { query: { ...this.#at(path), ...options } });
  }

  /** Unpacks a tar archive, plain or packed with gzip or zstd, into a directory: all of it, or nothing. */
  async uploadArchive(path: string, archive: Data): Promise<Uploaded> {
    const headers = { "Content-Type": "application/x-tar" };
    const body = await sendable(archive);
    return await this.#http.json<Uploaded>("POST", "/v1/fs/upload-batch", { query: this.#at(path), headers, body });
  }

  /** A directory as a tar archive, as it arrives. */
  async *downloadArchive(
    path: string,
    options: { format?: "tar" | "tar.gz" | "tar.zst" } = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const query = { ...this.#at(path), ...options };
    yield* piecesOf(this.#http, await this.#http.send("GET", "/v1/fs/archive", { query }));
  }

  /** Lines with a text in files, or files by name, or both. After the loop, `truncated` says whether there is more. */
  search(path: string, options: SearchOptions): Search {
    return new Search(this.#http, { ...this.#at(path), ...options });
  }

  /** Changes in a directory and, unless `recursive` is false, all below it, as they happen. */
  watch(path = ".", options: { recursive?: boolean } = {}): Watch {
    return new Watch(this.#http, path, { ...this.#at(path), ...options });
  }

  async #content(path: string, { start = 0, end }: ByteRange): Promise<Response> {
    if (start < 0 || (end !== undefined && end <= start)) {
      throw new InvalidCall(`there are no bytes from ${start} to before ${end}`);
    }
    const whole = start === 0 && end === undefined;
    const headers = { Range: `bytes=${start}-${end === undefined ? "" : end - 1}` };
    const call = whole ? { query: this.#at(path) } : { query: this.#at(path), headers };
    const response = await this.#http.send("GET", "/v1/fs/file", call);
    if (!whole && response.status !== 206) throw foreign(this.#http.url, response.status, "not the part asked for", "");
    return response;
  }

  #at(path: string): Where & { readonly path: string } {
    return { path, ...this.#where };
  }
}
