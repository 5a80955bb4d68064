/**
 * One WebSocket of `/v1/rpc`: frames out, events in, and how it ends.
 *
 * Knows nothing of what is in the envelopes, and opens itself once.
 */

import { InvalidCall, ServerProblem } from "./errors.js";

/** The required part of a `WebSocket`. */
export interface SocketLike {
  /** Called with each message. */
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  /** Called when it is closed, or could not be opened. */
  onclose: ((event: { readonly code: number; readonly reason: string }) => void) | null;
  /** Called when something goes wrong. */
  onerror: ((event: never) => void) | null;
  /** Sends a text. */
  send(data: string): void;
  /** Closes it. */
  close(code?: number, reason?: string): void;
}

/** Makes a `WebSocket`. */
export type SocketConstructor = new (url: string, protocols: string[]) => SocketLike;

/** A frame from the server is the event's id, a line break and the envelope. */
const WITH_IDS = "sandboxagent.v1";
/** Before the token in base64url: a browser cannot set headers. */
const BEARER = "sandboxagent.bearer.";
const GOODBYE = 1000;
/** Ours: the connection goes on, on another socket. */
const LEAVING = 3000;
const TOO_LARGE = 1009;
/** Plus the HTTP status of a refusal: its close code. */
const REFUSED = 4000;
const FIRST_STATUS = 400;
/** Milliseconds for a handshake. */
const HANDSHAKE = 10_000;

/** How a socket ended. */
export interface Ending {
  /** Whether it was open before. */
  readonly opened: boolean;
  /** A message was larger than the server takes. */
  readonly tooLarge: boolean;
  /** The server's refusal; undefined for a cut and for a normal end. */
  readonly failure: ServerProblem | undefined;
}

/** The user of a socket. None of these may throw. */
export interface SocketUser {
  /** It can be written to. */
  opened(): void;
  /** A sign of life, with an event or without one. */
  heard(event?: { position: number; data: string }): void;
}

/** The global `WebSocket`, or the one that was given. */
export function socketConstructor(given: SocketConstructor | undefined): SocketConstructor {
  const found = given ?? (globalThis as { WebSocket?: SocketConstructor }).WebSocket;
  if (found === undefined) {
    throw new InvalidCall("there is no WebSocket here: Node has one since version 22; or give one as `webSocket`");
  }
  return found;
}

/** One of them, from its handshake to its end. */
export class Socket {
  /** Resolves when it has ended, for any reason. */
  readonly ended: Promise<Ending>;
  readonly #socket: SocketLike;
  #opened = false;
  #end!: (ending: Ending) => void;
  #over = false;
  readonly #handshake: ReturnType<typeof setTimeout>;

  constructor(make: SocketConstructor, url: string, token: string | undefined, user: SocketUser) {
    this.ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    const protocols = token === undefined ? [WITH_IDS] : [WITH_IDS, BEARER + base64url(token)];
    this.#socket = new make(url.replace(/^http/, "ws"), protocols);
    this.#handshake = setTimeout(() => this.leave(), HANDSHAKE);
    this.#socket.onmessage = ({ data }) => {
      if (this.#over || typeof data !== "string") return;
      if (!this.#opened) {
        // An open socket may still be refused. One that is not begins with a frame, an empty one if need be.
        this.#opened = true;
        clearTimeout(this.#handshake);
        user.opened();
      }
      const end = data.indexOf("\n");
      if (end === -1) user.heard();
      else user.heard({ position: Number(data.slice(0, end)), data: data.slice(end + 1) });
    };
    this.#socket.onclose = ({ code, reason }) => this.#finish(code, reason);
    // What went wrong is not told; the end follows.
    this.#socket.onerror = () => this.#finish(0, "");
  }

  /** Sends a frame: an envelope, under a key or not. */
  send(body: string, key: string | undefined): void {
    try {
      this.#socket.send(key === undefined ? body : `${key}\n${body}`);
    } catch {
      // It is closing, and its end tells so.
    }
  }

  /** Ends the socket at once and leaves the connection as it is. */
  leave(): void {
    this.#close(LEAVING, "going on elsewhere");
    this.#finish(0, "");
  }

  /** Closes the connection with the socket. */
  goodbye(): void {
    this.#close(GOODBYE, "");
  }

  #close(code: number, reason: string): void {
    try {
      this.#socket.close(code, reason);
    } catch {
      // Not open yet, in some implementations.
    }
  }

  #finish(code: number, reason: string): void {
    clearTimeout(this.#handshake);
    if (this.#over) return;
    this.#over = true;
    const status = code - REFUSED;
    const failure = status >= FIRST_STATUS ? new ServerProblem(reason, reason, status, "") : undefined;
    this.#end({ opened: this.#opened, tooLarge: code === TOO_LARGE, failure });
  }
}

function base64url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  const encoded = btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join(""));
  return encoded.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
