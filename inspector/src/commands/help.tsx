/** All keys of the page, by where they work. */

import type { ReactNode } from "react";

import { Dialog, Kbd } from "../design/index.js";
import { CONTROL } from "../design/keys.js";
import styles from "./help.module.css";

/** Keys by place: each with what it does. Keys of a row are one after the other, or instead of each other. */
const KEYS: readonly { readonly place: string; readonly keys: readonly (readonly [readonly string[], string])[] }[] = [
  {
    place: "Everywhere",
    keys: [
      [[CONTROL, "K"], "Go to a session or a page, or do something"],
      [["?"], "Show this list"],
      [["Esc"], "Close what is open, or leave a field"],
    ],
  },
  {
    place: "Waiting for you",
    keys: [
      [["1–9"], "Choose an option"],
      [["A"], "Allow once"],
      [["R"], "Reject"],
    ],
  },
  {
    place: "Chat",
    keys: [
      [["/"], "Write"],
      [["Enter"], "Send, or queue while a turn runs"],
      [["Shift", "Enter"], "New line"],
      [["↑"], "Earlier messages, in an empty field"],
    ],
  },
  {
    place: "Mission control",
    keys: [
      [["/"], "Find sessions"],
      [["↑", "↓"], "Go through the sessions; Enter opens one"],
    ],
  },
  {
    place: "Changes",
    keys: [
      [["J", "K"], "Next or previous change"],
      [["U"], "Unified or side by side"],
      [["G"], "By file or by turn"],
    ],
  },
  {
    place: "Envelopes",
    keys: [
      [["J", "K"], "Next or previous envelope"],
      [["P"], "To its request or its response"],
    ],
  },
  {
    place: "Timeline",
    keys: [
      [["←", "→"], "One event; with Shift, ten"],
      [["Pg ↑", "Pg ↓"], "Turn by turn"],
      [["Home", "End"], "Beginning or end"],
    ],
  },
];

export function Help({ onClose }: { readonly onClose: () => void }): ReactNode {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose} wide>
      <div className={styles.places}>
        {KEYS.map(({ place, keys }) => (
          <section key={place} aria-label={place}>
            <h3>{place}</h3>
            <dl className={styles.keys}>
              {keys.map(([names, what]) => (
                <div key={what}>
                  <dt>
                    {names.map((name) => (
                      <Kbd key={name}>{name}</Kbd>
                    ))}
                  </dt>
                  <dd>{what}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
