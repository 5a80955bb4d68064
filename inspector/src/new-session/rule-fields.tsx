/** Permission rules of a session that is about to begin, one line each. */

import { Plus, Trash2 } from "lucide-react";
import type { ReactNode } from "react";

import { Button, IconButton, Input, Select } from "../design/index.js";
import styles from "./new-session.module.css";
import { ACTIONS, type DraftRule, SUBJECTS } from "./rules.js";

const EXAMPLES = { command: "npm test", path: "src/**", tool: "WebFetch", kind: "edit" } as const;

interface RuleFieldsProps {
  readonly rules: readonly DraftRule[];
  readonly onChange: (rules: readonly DraftRule[]) => void;
}

export function RuleFields({ rules, onChange }: RuleFieldsProps): ReactNode {
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
      <Button size="small" look="quiet" className={styles.add ?? ""} onClick={add}>
        <Plus aria-hidden /> Add a rule
      </Button>
    </fieldset>
  );
}
