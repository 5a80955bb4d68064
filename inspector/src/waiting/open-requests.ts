/** What agents ask of this client, as a store: give `handlers` to the SDK, and every request is here until it is settled. */

import type { ElicitationRequest, Handlers, PermissionRequest, QuestionRequest, SandboxAgent } from "sandboxagent";

export type OpenRequest = PermissionRequest | QuestionRequest | ElicitationRequest;

export class OpenRequests {
  /** All leave the answer to a person. */
  readonly handlers: Required<Handlers> = {
    onPermission: (request) => this.#add(request),
    onQuestion: (request) => this.#add(request),
    onElicitation: (request) => this.#add(request),
  };
  #list: readonly OpenRequest[] = [];
  readonly #listeners = new Set<() => void>();

  /** Oldest first; another array after every change. */
  readonly list = (): readonly OpenRequest[] => this.#list;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  };

  #add(request: OpenRequest): undefined {
    if (request.signal.aborted) return;
    request.signal.addEventListener("abort", () => this.#set(this.#list.filter((each) => each !== request)), {
      once: true,
    });
    this.#set([...this.#list, request]);
  }

  #set(list: readonly OpenRequest[]): void {
    this.#list = list;
    for (const listener of [...this.#listeners]) listener();
  }
}

const known = new WeakMap<SandboxAgent, OpenRequests>();

/** What is asked of a client: of one that was made with `handlers` of a store, that store. */
export function openRequestsOf(client: SandboxAgent): OpenRequests {
  let requests = known.get(client);
  if (requests === undefined) {
    requests = new OpenRequests();
    known.set(client, requests);
  }
  return requests;
}

/** Says that a client was made with the handlers of a store. */
export function serveRequests(client: SandboxAgent, requests: OpenRequests): void {
  known.set(client, requests);
}
