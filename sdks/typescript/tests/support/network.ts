/** A server behind a network that tests can break: there for all tests of a `describe`, and whole again after each. */

import { after, afterEach, before } from "node:test";

import type { ConnectOptions, SandboxAgent, Session } from "sandboxagent";

import { Proxy } from "./proxy.js";
import { TestServer } from "./server.js";

/** A client behind that network, with a session; closed with the block. */
export type Made = { client: SandboxAgent; session: Session } & AsyncDisposable;

export interface Network {
  readonly server: TestServer;
  readonly proxy: Proxy;
  made(options?: ConnectOptions): Promise<Made>;
}

/** To be called in a `describe`: the server has these flags, and clients talk to it this way. */
export function network(flags: string[] = [], way: ConnectOptions = {}): Network {
  const server = new TestServer(flags);
  const proxy = new Proxy(() => server.url);
  before(async () => {
    await Promise.all([server.start(), proxy.listen()]);
  });
  after(async () => {
    await proxy.close();
    await server.close();
  });
  afterEach(() => {
    proxy.judge();
    proxy.comeBack();
  });
  const made = async (options: ConnectOptions = {}): Promise<Made> => {
    const client = await server.connect({ url: proxy.url, ...way, ...options });
    const session = await client.sessions.create({ cwd: server.work });
    return { client, session, [Symbol.asyncDispose]: () => client.close() };
  };
  return { server, proxy, made };
}
