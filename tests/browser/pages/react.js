/** A page with the hooks of `sandboxagent/react`, for what they say when something is wrong. */

import { createElement } from "react";
import { createRoot } from "react-dom/client";
import * as sdk from "sandboxagent";
import { SandboxAgentProvider, usePendingRequests, useSession, useSessions } from "sandboxagent/react";

function Shown({ id }) {
  const { view, status, error, connection } = useSession(id);
  const pending = usePendingRequests();
  const list = useSessions();
  window.shown = {
    status,
    slug: error?.slug,
    connection: connection.state,
    items: view.turns.flatMap(({ items }) => items.map(({ type }) => type)),
    pending: pending.requests.map((request) => request.id),
    sessions: list.sessions.length,
  };
  return null;
}

let root;

/** Shows a session by its id, with a client, and nothing else. */
function show(client, id) {
  root?.unmount();
  root = createRoot(document.createElement("div"));
  root.render(createElement(SandboxAgentProvider, { client }, createElement(Shown, { id })));
}

Object.assign(window, { sdk, show, reports: [], logger: { warn() {}, error() {} } });
