import type { ReactNode } from "react";

export function NewSession(): ReactNode {
  return <p>New session</p>;
}
