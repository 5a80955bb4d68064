/** Logs of the server that the page is connected to. */

import { type ReactNode, useEffect, useState } from "react";

import { useServer } from "../server/index.js";
import { Logs } from "./hooks.js";
import { LogBook } from "./log-book.js";
import { mayPass, sourceOf } from "./source.js";

export function LogsOfServer({ children }: { readonly children: ReactNode }): ReactNode {
  const { client } = useServer();
  const [book] = useState(() => new LogBook(undefined, mayPass));
  useEffect(() => {
    book.read(sourceOf(client));
    return () => book.read(undefined);
  }, [book, client]);
  return <Logs book={book}>{children}</Logs>;
}
