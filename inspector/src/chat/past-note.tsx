/** Says that a moment of the past is shown, with the way back. */

import type { ReactNode } from "react";

import { Button } from "../design/index.js";
import { useSpot } from "../router.js";

export function PastNote({ at }: { readonly at: number }): ReactNode {
  const { move } = useSpot();
  return (
    <p className="past-note">
      This is how it was after event {at}.
      <Button size="small" onClick={() => move({ at: undefined })}>
        Back to live
      </Button>
    </p>
  );
}
