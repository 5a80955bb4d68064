import type { ReactNode } from "react";

export function Replay(): ReactNode {
  return <p>Replay</p>;
}
