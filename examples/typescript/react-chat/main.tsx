/** A chat with agents: streamed answers, approvals, questions and files. */

import { type FormEvent, StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { type Entry, SandboxAgent, type Session } from "sandboxagent";
import {
  Messages,
  RequestCard,
  SandboxAgentProvider,
  usePendingRequests,
  useSandboxAgent,
  useSession,
  useSessions,
} from "sandboxagent/react";

const place = new URLSearchParams(location.hash.slice(1));
const cwd = place.get("cwd") ?? "/";

function App() {
  const client = useSandboxAgent();
  const [sessionId, setSessionId] = useState<string>();
  const { sessions, error } = useSessions();
  const start = async () => setSessionId((await client.sessions.create("mock", { cwd })).id);
  return (
    <>
      <nav aria-label="Sessions">
        <h1>Chat</h1>
        <button onClick={start}>New session</button>
        {error != null && <p role="alert">{String(error)}</p>}
        {sessions.map((session) => (
          <button
            key={session.sessionId}
            aria-current={session.sessionId === sessionId}
            onClick={() => setSessionId(session.sessionId)}
          >
            {session.title ?? session.agent} {session.pending > 0 && <b>waits for you</b>}
          </button>
        ))}
      </nav>
      {sessionId === undefined ? <main>Start a session, or choose one.</main> : <Chat key={sessionId} id={sessionId} />}
    </>
  );
}

function Chat({ id }: { id: string }) {
  const { session, view, status, error, connection, prompt, cancel } = useSession(id);
  const { requests } = usePendingRequests({ sessionId: id });
  const send = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget).get("prompt")).trim();
    event.currentTarget.reset();
    // The view shows how a turn fails.
    if (text) prompt(text).catch(() => undefined);
  };
  return (
    <>
      <main>
        {connection.state === "reconnecting" && <p role="status">The connection is lost. Trying again …</p>}
        {error != null && <p role="alert">{String(error)}</p>}
        <Messages view={view} />
        {requests.map((request) => (
          <RequestCard key={request.id} request={request} />
        ))}
        <form onSubmit={send}>
          <input name="prompt" aria-label="Prompt" placeholder="Ask the agent, or say help" autoComplete="off" autoFocus />
          <button disabled={status === "ended"}>Send</button>
          {view.status === "running" && (
            <button type="button" onClick={cancel}>
              Stop
            </button>
          )}
        </form>
      </main>
      {session && <Files session={session} state={`${view.turns.length} ${view.status}`} />}
    </>
  );
}

/** Reads the files again after each turn. */
function Files({ session, state }: { session: Session; state: string }) {
  const [entries, setEntries] = useState<readonly Entry[]>([]);
  const [open, setOpen] = useState<{ path: string; text: string }>();
  useEffect(() => {
    const read = async () => {
      const found: Entry[] = [];
      for await (const entry of session.files.list()) found.push(entry);
      setEntries(found);
    };
    read().catch(() => setEntries([]));
  }, [session, state]);
  const show = async (path: string) =>
    setOpen({ path, text: await session.files.readText(path).catch((error: unknown) => String(error)) });
  return (
    <aside aria-label="Files">
      {entries.length === 0 && "No files yet"}
      {entries.map(({ name, path, entryType }) => (
        <button key={path} disabled={entryType !== "file"} onClick={() => show(path)}>
          {name}
        </button>
      ))}
      {open && <pre aria-label={open.path}>{open.text}</pre>}
    </aside>
  );
}

// Handlers that return nothing leave requests open for the cards; with the third one, agents' forms come as forms.
const leaveOpen = { onPermission: () => undefined, onQuestion: () => undefined, onElicitation: () => undefined };
const root = createRoot(document.querySelector("#root")!);
SandboxAgent.connect(place.get("url") ?? "", { token: place.get("token") ?? "", agent: "mock", ...leaveOpen }).then(
  (client) =>
    root.render(
      <StrictMode>
        <SandboxAgentProvider client={client}>
          <App />
        </SandboxAgentProvider>
      </StrictMode>,
    ),
  (error: unknown) => root.render(<p role="alert">{String(error)}</p>),
);
