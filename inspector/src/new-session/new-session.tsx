/** A new session: which agent, where, with what model, mode and options, and what it may do without asking. */

import { ChevronDown, ChevronUp, Play } from "lucide-react";
import { type FormEvent, type ReactNode, useCallback, useEffect, useMemo, useState } from "react";
import type { Agent, CreateSessionOptions } from "sandboxagent";

import { Install } from "../agents/install.js";
import { AgentFace, StandingBadge, aboutOf, standingOf } from "../agents/standing.js";
import { focusComposer } from "../composer/focus.js";
import { Button, ErrorNote, Field, Input, Loading, Select, Spinner, TextArea, Words, toast, wordsOf } from "../design/index.js";
import { useMachine } from "../nodes/machine.js";
import { go } from "../router.js";
import { useInventory, useLoaded, useServer } from "../server/index.js";
import { DirectoryField } from "./directory-picker.js";
import { NOTHING_CHOSEN, OfferFields } from "./offer-fields.js";
import { RuleFields } from "./rule-fields.js";
import { type DraftRule, rulesOf } from "./rules.js";
import styles from "./new-session.module.css";

const PERMISSION_MODES = [
  ["", "Agent's default"],
  ["default", "Ask before it acts"],
  ["acceptEdits", "Edit files without asking, ask for the rest"],
  ["plan", "Plan only: change nothing"],
  ["read-only", "Read only: change nothing"],
  ["bypassPermissions", "Never ask"],
] as const;

interface NewSessionProps {
  readonly agent: string | undefined;
  readonly cwd: string | undefined;
}

export function NewSession({ agent: given, cwd: there }: NewSessionProps): ReactNode {
  const { agents: those } = useMachine();
  const [registry, setRegistry] = useState(false);
  const load = useCallback(() => those.list({ registry }), [those, registry]);
  const [agents, reload] = useLoaded(load);
  const [wanted, setWanted] = useState(given);
  const offered = useMemo(() => [...(agents.value ?? [])].sort(byReadiness), [agents.value]);
  const chosen = offered.find(({ id }) => id === wanted) ?? offered[0];
  const [all, setAll] = useState(false);
  // What can be used comes first, and is all that most people look for.
  const near = offered.filter((each) => each === chosen || each.installed);
  const hidden = near.length === 0 || registry ? 0 : offered.length - near.length;
  const shown = all || hidden === 0 ? offered : near;
  return (
    <div className={styles.room}>
      <div className={styles.inside}>
        <h1>New session</h1>
        {agents.state === "failed" && !agents.value && (
          <ErrorNote title="Could not load the agents" error={agents.error} actions={<Button onClick={reload}>Try again</Button>} />
        )}
        {agents.state === "loading" && !agents.value && <Loading label="Loading the agents" />}
        {chosen && (
          <>
            <fieldset className={styles.agents}>
              <legend>
                Agent
                <Button size="small" look="quiet" aria-pressed={registry} onClick={() => setRegistry(!registry)}>
                  Registry
                </Button>
              </legend>
              {shown.map((each) => (
                <label key={each.id} className={styles.agent}>
                  <input
                    type="radio"
                    name="agent"
                    value={each.id}
                    checked={each === chosen}
                    onChange={() => setWanted(each.id)}
                  />
                  <AgentFace agent={each.id} />
                  <Words name={each.title} about={aboutOf(each)} />
                  <StandingBadge agent={each} />
                </label>
              ))}
              {hidden > 0 && (
                <Button look="quiet" className={styles.more ?? ""} aria-expanded={all} onClick={() => setAll(!all)}>
                  {all ? <ChevronUp aria-hidden /> : <ChevronDown aria-hidden />}
                  {all ? "Show fewer" : hidden === 1 ? "1 more that can be installed" : `${hidden} more that can be installed`}
                </Button>
              )}
            </fieldset>
            <Readiness key={`ready ${chosen.id}`} agent={chosen} onChange={reload} />
            <Start key={chosen.id} agent={chosen} cwd={there} />
          </>
        )}
      </div>
    </div>
  );
}

/** What has to be done before this agent can be used. */
function Readiness({ agent, onChange }: { readonly agent: Agent; readonly onChange: () => void }): ReactNode {
  const standing = standingOf(agent);
  if (standing === "unsupported") {
    return <ErrorNote title={`${agent.title} does not run on this machine`}>{agent.unsupportedReason}</ErrorNote>;
  }
  if (standing === "missing" || standing === "installing") return <Install agent={agent} onEnd={onChange} />;
  if (standing === "unarmed") {
    return (
      <div className={styles.note}>
        <strong>The server has no credentials for {agent.title}.</strong> It may still work when the agent itself is logged
        in. Otherwise set {agent.credentials.map(({ name }) => name).slice(0, 3).join(" or ")} where the server runs.
      </div>
    );
  }
  return null;
}

/** Everything else, and the start. */
function Start({ agent, cwd: there }: { readonly agent: Agent; readonly cwd: string | undefined }): ReactNode {
  const { client } = useServer();
  const { node } = useMachine();
  const { sessions } = useInventory();
  const known = useMemo(() => {
    const there = sessions.filter((each) => node === undefined || each.node === node);
    return [...new Set(there.map(({ cwd }) => cwd))].slice(0, 20);
  }, [sessions, node]);
  const [cwd, setCwd] = useDirectory(there ?? known[0]);
  const [title, setTitle] = useState("");
  const [chosen, setChosen] = useState(NOTHING_CHOSEN);
  const [permissionMode, setPermissionMode] = useState("");
  const [rules, setRules] = useState<readonly DraftRule[]>([]);
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const usable = agent.supported && agent.installed;
  const start = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    const permissions = rulesOf(rules);
    const options: CreateSessionOptions = {
      cwd,
      ...(title.trim() && { title: title.trim() }),
      ...chosen,
      ...(node !== undefined && { node }),
      ...(permissionMode && { permissionMode }),
      ...(permissions.length > 0 && { permissions }),
    };
    try {
      const session = await client.sessions.create(agent.id, options);
      for (const warning of session.warnings) toast(warning, "bad");
      // What becomes of it is in the session's log, which the next room shows.
      if (text.trim()) session.prompt(text.trim()).then(undefined, (failure: unknown) => toast(wordsOf(failure), "bad"));
      focusComposer(session.id);
      go({ room: "session", id: session.id });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <form className={styles.form} onSubmit={(event) => void start(event)}>
      <DirectoryField value={cwd} onChange={setCwd} known={known} />
      {usable && <OfferFields agent={agent} chosen={chosen} onChange={setChosen} />}
      <Field label="Permission mode">
        {(described) => (
          <Select {...described} value={permissionMode} onChange={(event) => setPermissionMode(event.target.value)}>
            {PERMISSION_MODES.map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </Select>
        )}
      </Field>
      <RuleFields rules={rules} onChange={setRules} />
      <Field label="Title" hint="The agent may give it another one later.">
        {(described) => <Input {...described} value={title} onChange={(event) => setTitle(event.target.value)} />}
      </Field>
      <Field label="First message">
        {(described) => (
          <TextArea
            {...described}
            rows={3}
            placeholder="Optional: what it should do first"
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        )}
      </Field>
      <div className={styles.actions}>
        {error !== undefined && <ErrorNote title="Could not start the session" error={error} />}
        <Button look="primary" type="submit" busy={busy} disabled={!usable || !cwd.startsWith("/")}>
          {busy ? <Spinner label="Starting" /> : <Play aria-hidden />}
          {busy ? `Starting ${agent.title}` : "Start"}
        </Button>
        {!usable && <span className={styles.hint}>{agent.supported ? "Install the agent first." : ""}</span>}
      </div>
    </form>
  );
}

/** The directory that is chosen; until a person says otherwise, the server's own. */
function useDirectory(initial: string | undefined): [string, (path: string) => void] {
  const { files } = useMachine();
  const [chosen, setChosen] = useState<string>();
  const [home, setHome] = useState("");
  useEffect(() => {
    if (initial === undefined) files.stat(".").then(({ path }) => setHome(path), () => undefined);
  }, [files, initial]);
  return [chosen ?? initial ?? home, setChosen];
}

const ORDER = ["ready", "unarmed", "broken", "installing", "missing", "unsupported"];

/** Those that can be used come first; the mock agent, which is for trying things, after agents that do something. */
function byReadiness(one: Agent, other: Agent): number {
  const place = (agent: Agent): number => ORDER.indexOf(standingOf(agent)) + (agent.install.source === "bundled" ? 0.5 : 0);
  return place(one) - place(other) || one.title.localeCompare(other.title);
}
