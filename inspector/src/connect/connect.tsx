/** What stands before everything else: there is no server, or the person has to sign in. */

import { KeyRound, Unplug } from "lucide-react";
import { type FormEvent, type ReactNode, useState } from "react";

import { Button, Field, Input, Spinner, wordsOf } from "../design/index.js";
import { useConnection, useConnectionView } from "../server/index.js";
import styles from "./connect.module.css";

const REFUSALS = {
  missing: {
    title: "Sign in with the server's token",
    text: "The server printed the token when it started. `sandbox-agent ui` opens this page signed in.",
  },
  wrong: {
    title: "This is not the server's token",
    text: "Look at what the server printed when it started, or run `sandbox-agent ui`, which opens this page signed in.",
  },
  expired: {
    title: "The server has a new token",
    text: "Sign in again: the server was restarted with another token. Your sessions are still there.",
  },
} as const;

export function Connect(): ReactNode {
  const view = useConnectionView();
  return (
    <main className={styles.page}>
      {view.state === "refused" ? <AskToken why={view.why} /> : null}
      {view.state === "absent" ? <Absent error={view.error} /> : null}
      {view.state === "refused" || view.state === "absent" ? null : (
        <div className={styles.quiet}>
          <Spinner label="Connecting to the server" />
        </div>
      )}
    </main>
  );
}

function AskToken({ why }: { readonly why: keyof typeof REFUSALS }): ReactNode {
  const connection = useConnection();
  const [token, setToken] = useState("");
  const { title, text } = REFUSALS[why];
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (token.trim()) void connection.connect(token.trim());
  };
  return (
    <form className={styles.card} onSubmit={submit}>
      <span className={styles.icon} aria-hidden>
        <KeyRound />
      </span>
      <h1>{title}</h1>
      <p role={why === "missing" ? undefined : "alert"}>{withCode(text)}</p>
      <Field label="Token" hint="It stays in this browser's open tabs, and is gone when you close the last one.">
        {(given) => (
          <Input
            {...given}
            type="password"
            autoFocus
            autoComplete="off"
            spellCheck={false}
            value={token}
            onChange={(event) => setToken(event.target.value)}
          />
        )}
      </Field>
      <Button look="primary" type="submit" disabled={!token.trim()}>
        Sign in
      </Button>
    </form>
  );
}

function Absent({ error }: { readonly error: unknown }): ReactNode {
  return (
    <div className={styles.card}>
      <span className={styles.icon} aria-hidden>
        <Unplug />
      </span>
      <h1>The server does not answer</h1>
      <p role="alert">
        Nothing answers at <code>{window.location.host}</code>. This page connects as soon as the server is back. No session
        is lost.
      </p>
      <p className={styles.detail}>{wordsOf(error)}</p>
      <p className={styles.trying}>
        <Spinner label="Trying again" /> Trying again
      </p>
    </div>
  );
}

function withCode(text: string): ReactNode {
  return text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part));
}
