/** Installing an agent, with its progress; an install that another client began is shown as well. */

import { Download } from "lucide-react";
import { type ReactNode, useRef, useState } from "react";
import type { Agent, Progress } from "sandboxagent";

import { Button, ErrorNote, sizeText } from "../design/index.js";
import { useMachine } from "../nodes/machine.js";
import styles from "./agents.module.css";

interface InstallProps {
  readonly agent: Agent;
  /** Called when it has ended, well or not. */
  readonly onEnd: () => void;
  readonly again?: boolean;
}

export function Install({ agent, onEnd, again = false }: InstallProps): ReactNode {
  const { agents } = useMachine();
  const [progress, setProgress] = useState<Progress | undefined>(agent.install.progress);
  const [error, setError] = useState<unknown>();
  const running = useRef(false);
  const install = async (): Promise<void> => {
    if (running.current) return;
    running.current = true;
    setError(undefined);
    setProgress({ stage: "waiting", message: "Starting" });
    try {
      for await (const step of agents.install(agent.id, again ? { reinstall: true } : {})) {
        if ("stage" in step) setProgress(step);
      }
    } catch (failure) {
      setError(failure);
    } finally {
      running.current = false;
      setProgress(undefined);
      onEnd();
    }
  };
  const shown = progress ?? agent.install.progress;
  return (
    <div className={styles.install}>
      {shown ? (
        <InstallProgress progress={shown} />
      ) : (
        <Button look={again ? "plain" : "primary"} onClick={() => void install()}>
          <Download aria-hidden />
          {again ? "Install again" : `Install ${agent.title}`}
        </Button>
      )}
      {error !== undefined && <ErrorNote title={`${agent.title} could not be installed`} error={error} />}
    </div>
  );
}

function InstallProgress({ progress }: { readonly progress: Progress }): ReactNode {
  const { stage, message, bytes, totalBytes } = progress;
  const known = bytes !== undefined && totalBytes !== undefined && totalBytes > 0;
  const amount = bytes === undefined ? "" : `${sizeText(bytes)}${totalBytes ? ` of ${sizeText(totalBytes)}` : ""}`;
  return (
    <div className={styles.progress} role="status">
      <div className={styles.step}>
        <span>{message || stage}</span>
        <span className={styles.amount}>{amount}</span>
      </div>
      <progress {...(known && { value: bytes, max: totalBytes })} aria-label={`Installing: ${stage}`} />
    </div>
  );
}
