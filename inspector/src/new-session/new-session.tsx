/** A new session: which agent, where, with what model and mode, and what it may do unasked. */

import { Play, Plus, Trash2 } from "lucide-react";
import { type FormEvent, type ReactNode, useCallback, useEffect, useMemo, useState } from "react";
import type { Agent, CreateSessionOptions } from "sandboxagent";

import { Install } from "../agents/install.js";
import { AgentFace, StandingBadge, standingOf } from "../agents/standing.js";
import { Button, ErrorNote, Field, IconButton, Input, Loading, Select, Spinner, TextArea, toast, wordsOf } from "../design/index.js";
import { go } from "../router.js";
import { useInventory, useLoaded, useServer } from "../server/index.js";
import { DirectoryField } from "./directory-picker.js";
import { ACTIONS, type DraftRule, SUBJECTS, rulesOf } from "./rules.js";
import styles from "./new-session.module.css";

const PERMISSION_MODES = [
  ["", "As the agent has it"],
  ["default", "Ask before it acts"],
  ["acceptEdits", "Edit files unasked, ask for the rest"],
  ["plan", "Plan: change nothing"],
  ["read-only", "Read only: change nothing"],
  ["bypassPermissions", "Ask nothing"],
] as const;
const EXAMPLES = { command: "npm test", path: "src/**", tool: "WebFetch", kind: "edit" } as const;

interface NewSessionProps {
  readonly agent: string | undefined;
  readonly cwd: string | undefined;
}

export function NewSession({ agent: given, cwd: there }: NewSessionProps): ReactNode {
  const { client } = useServer();
  const [registry, setRegistry] = useState(false);
  const load = useCallback(() => client.agents.list({ registry }), [client, registry]);
  const [agents, reload] = useLoaded(load);
  const [wanted, setWanted] = useState(given);
  const offered = useMemo(() => [...(agents.value ?? [])].sort(byReadiness), [agents.value]);
  const chosen = offered.find(({ id }) => id === wanted) ?? offered[0];
  return (
    <div className={styles.room}>
      <div className={styles.inside}>
        <h1>New session</h1>
        {agents.state === "failed" && !agents.value && (
          <ErrorNote title="The agents could not be read" error={agents.error} actions={<Button onClick={reload}>Try again</Button>} />
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
              {offered.map((each) => (
                <label key={each.id} className={styles.agent}>
                  <input
                    type="radio"
                    name="agent"
                    value={each.id}
                    checked={each === chosen}
                    onChange={() => setWanted(each.id)}
                  />
                  <AgentFace agent={each.id} />
                  <span className={styles.words}>
                    <span>{each.title}</span>
                    <span className={styles.version}>{each.version ?? each.id}</span>
                  </span>
                  <StandingBadge agent={each} />
                </label>
              ))}
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
  const { client, inventory } = useServer();
  const { sessions } = useInventory();
  const known = useMemo(() => [...new Set(sessions.map(({ cwd }) => cwd))].slice(0, 20), [sessions]);
  const [cwd, setCwd] = useDirectory(there ?? known[0]);
  const [title, setTitle] = useState("");
  const [model, setModel] = useState("");
  const [mode, setMode] = useState("");
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
      ...(model && { model }),
      ...(mode && { mode }),
      ...(permissionMode && { permissionMode }),
      ...(permissions.length > 0 && { permissions }),
    };
    try {
      const session = await client.sessions.create(agent.id, options);
      for (const warning of session.warnings) toast(warning, "bad");
      // What becomes of it is in the session's log, which the next room shows.
      if (text.trim()) session.prompt(text.trim()).then(undefined, (failure: unknown) => toast(wordsOf(failure), "bad"));
      inventory.look();
      go({ room: "session", id: session.id });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return (
    <form className={styles.form} onSubmit={(event) => void start(event)}>
      <DirectoryField value={cwd} onChange={setCwd} known={known} />
      <Choices agent={agent} usable={usable} model={model} mode={mode} onModel={setModel} onMode={setMode} />
      <Field label="What it may do unasked">
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
      <Rules rules={rules} onChange={setRules} />
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
      {error !== undefined && <ErrorNote title="The session could not be started" error={error} />}
      <div className={styles.actions}>
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
  const { client } = useServer();
  const [chosen, setChosen] = useState<string>();
  const [home, setHome] = useState("");
  useEffect(() => {
    if (initial === undefined) client.files.stat(".").then(({ path }) => setHome(path), () => undefined);
  }, [client, initial]);
  return [chosen ?? initial ?? home, setChosen];
}

interface ChoicesProps {
  readonly agent: Agent;
  readonly usable: boolean;
  readonly model: string;
  readonly mode: string;
  readonly onModel: (model: string) => void;
  readonly onMode: (mode: string) => void;
}

/** Models and modes; an agent that has not told them yet is asked. */
function Choices({ agent, usable, model, mode, onModel, onMode }: ChoicesProps): ReactNode {
  const { client } = useServer();
  const told = agent.models !== undefined || agent.modes !== undefined;
  const ask = useCallback(() => client.agents.get(agent.id, { models: true }), [client, agent.id]);
  const [asked] = useLoaded(usable && !told ? ask : undefined);
  const source = told ? agent : asked.value;
  if (!usable) return null;
  if (!source) {
    return (
      <p className={styles.asking}>
        {asked.state === "failed" ? (
          `${agent.title} does not say which models and modes it has: ${wordsOf(asked.error)}`
        ) : (
          <>
            <Spinner label="Asking" /> Asking {agent.title} for its models and modes
          </>
        )}
      </p>
    );
  }
  const models = source.models?.availableModels ?? [];
  const modes = source.modes?.availableModes ?? [];
  const current = models.find(({ modelId }) => modelId === source.models?.currentModelId)?.name;
  const usual = modes.find(({ id }) => id === source.modes?.currentModeId)?.name;
  return (
    <div className={styles.pair}>
      {models.length > 0 && (
        <Field label="Model" hint={models.find(({ modelId }) => modelId === model)?.description}>
          {(described) => (
            <Select {...described} value={model} onChange={(event) => onModel(event.target.value)}>
              <option value="">{current ? `As usual: ${current}` : "As usual"}</option>
              {models.map(({ modelId, name }) => (
                <option key={modelId} value={modelId}>
                  {name || modelId}
                </option>
              ))}
            </Select>
          )}
        </Field>
      )}
      {modes.length > 0 && (
        <Field label="Mode" hint={modes.find(({ id }) => id === mode)?.description}>
          {(described) => (
            <Select {...described} value={mode} onChange={(event) => onMode(event.target.value)}>
              <option value="">{usual ? `As usual: ${usual}` : "As usual"}</option>
              {modes.map(({ id, name }) => (
                <option key={id} value={id}>
                  {name}
                </option>
              ))}
            </Select>
          )}
        </Field>
      )}
    </div>
  );
}

interface RulesProps {
  readonly rules: readonly DraftRule[];
  readonly onChange: (rules: readonly DraftRule[]) => void;
}

function Rules({ rules, onChange }: RulesProps): ReactNode {
  const change = (id: number, part: Partial<DraftRule>): void =>
    onChange(rules.map((each) => (each.id === id ? { ...each, ...part } : each)));
  const add = (): void =>
    onChange([...rules, { id: Math.max(0, ...rules.map(({ id }) => id)) + 1, action: "allow", subject: "command", value: "" }]);
  return (
    <fieldset className={styles.rules}>
      <legend>Permission rules</legend>
      <p className={styles.hint}>The first that fits decides, before people are asked.</p>
      {rules.map(({ id, action, subject, value }, at) => (
        <div key={id} className={styles.rule}>
          <Select
            aria-label={`Rule ${at + 1}: action`}
            value={action}
            onChange={(event) => change(id, { action: event.target.value as DraftRule["action"] })}
          >
            {ACTIONS.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
          <Select
            aria-label={`Rule ${at + 1}: about`}
            value={subject}
            onChange={(event) => change(id, { subject: event.target.value as DraftRule["subject"] })}
          >
            {SUBJECTS.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
          <Input
            aria-label={`Rule ${at + 1}: value`}
            className={styles.path ?? ""}
            spellCheck={false}
            placeholder={EXAMPLES[subject]}
            value={value}
            onChange={(event) => change(id, { value: event.target.value })}
          />
          <IconButton label={`Remove rule ${at + 1}`} onClick={() => onChange(rules.filter((each) => each.id !== id))}>
            <Trash2 aria-hidden />
          </IconButton>
        </div>
      ))}
      <Button size="small" look="quiet" onClick={add}>
        <Plus aria-hidden /> Add a rule
      </Button>
    </fieldset>
  );
}

const ORDER = ["ready", "unarmed", "broken", "installing", "missing", "unsupported"];

/** Those that can be used come first; the mock agent, which is for trying things, after agents that do something. */
function byReadiness(one: Agent, other: Agent): number {
  const place = (agent: Agent): number => ORDER.indexOf(standingOf(agent)) + (agent.install.source === "bundled" ? 0.5 : 0);
  return place(one) - place(other) || one.title.localeCompare(other.title);
}
