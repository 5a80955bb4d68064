/** A choice that this browser remembers. */

import { useState } from "react";

export function useKept<Choice extends string>(name: string, initial: Choice): [Choice, (choice: Choice) => void] {
  const [choice, setChoice] = useState<Choice>(() => (read(name) as Choice | undefined) ?? initial);
  return [
    choice,
    (next) => {
      setChoice(next);
      write(name, next);
    },
  ];
}

function read(name: string): string | undefined {
  try {
    return localStorage.getItem(`inspector.${name}`) ?? undefined;
  } catch {
    return undefined;
  }
}

function write(name: string, value: string): void {
  try {
    localStorage.setItem(`inspector.${name}`, value);
  } catch {
    // A frame of another site may keep nothing.
  }
}
