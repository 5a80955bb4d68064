import type { ReactNode } from "react";

export function Mission(): ReactNode {
  return <p>Mission</p>;
}
