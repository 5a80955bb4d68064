/**
 * The server's token: taken from the address's fragment, which no server ever sees, entered, or told by another tab
 * (`tabs.ts`); kept for this tab.
 */

const KEY = "inspector.token";
/** The token that the server has accepted last. */
const ACCEPTED = "inspector.accepted";
const NAME = "token";
/** Says in this browser that the server of this origin wants a token; not which. */
const WANTED = "inspector.signs-in";

/** What is kept here when the browser keeps nothing, as in frames of another site. */
const memory = new Map<string, string>();

/** The token that the address brings, which then no longer has it; else the one of this tab. */
export function takeToken(): string | undefined {
  const fragment = new URLSearchParams(window.location.hash.slice(1));
  const brought = fragment.get(NAME);
  if (brought === null) return read(KEY);
  fragment.delete(NAME);
  const rest = fragment.toString();
  const { pathname, search } = window.location;
  // In place: going back must not bring it into the address again.
  window.history.replaceState(window.history.state, "", pathname + search + (rest && `#${rest}`));
  keepToken(brought);
  return brought;
}

/** Keeps a token for this tab: a reload has it. */
export function keepToken(token: string): void {
  write(KEY, token);
}

/** The server took it. */
export function acceptToken(token: string): void {
  keepToken(token);
  write(ACCEPTED, token);
  try {
    localStorage.setItem(WANTED, "yes");
  } catch {
    // The next tab tries without a token first.
  }
}

/** Whether a token was needed here before: then another tab may have it. */
export function wantsToken(): boolean {
  try {
    return localStorage.getItem(WANTED) !== null;
  } catch {
    return false;
  }
}

/** Whether the server took this token before, in this tab. */
export function wasAccepted(token: string | undefined): boolean {
  return token !== undefined && read(ACCEPTED) === token;
}

/** Forgets it. */
export function forgetToken(): void {
  write(KEY, undefined);
  write(ACCEPTED, undefined);
}

/** Calls back when a link with a token is opened in this tab. */
export function onTokenBrought(callback: () => void): () => void {
  const changed = (): void => {
    if (new URLSearchParams(window.location.hash.slice(1)).has(NAME)) callback();
  };
  window.addEventListener("hashchange", changed);
  return () => window.removeEventListener("hashchange", changed);
}

function read(key: string): string | undefined {
  try {
    return sessionStorage.getItem(key) ?? memory.get(key);
  } catch {
    return memory.get(key);
  }
}

function write(key: string, value: string | undefined): void {
  if (value === undefined) memory.delete(key);
  else memory.set(key, value);
  try {
    if (value === undefined) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, value);
  } catch {
    // It is in memory.
  }
}
