/** The rooms, and which one is shown. */

import { type ReactNode, Suspense, lazy } from "react";

import { Chat } from "./chat/chat.js";
import { Mission } from "./mission/mission.js";
import { type Place, type Tab, usePlace } from "./router.js";

const Changes = lazy(async () => ({ default: (await import("./changes/changes.js")).Changes }));
const Envelopes = lazy(async () => ({ default: (await import("./envelopes/envelopes.js")).Envelopes }));
const Replay = lazy(async () => ({ default: (await import("./replay/replay.js")).Replay }));

export function App(): ReactNode {
  return (
    <main>
      <Suspense>
        <Room place={usePlace()} />
      </Suspense>
    </main>
  );
}

function Room({ place }: { readonly place: Place }): ReactNode {
  switch (place.room) {
    case "mission":
      return <Mission />;
    case "session":
    case "embed":
      return <Session sessionId={place.id} tab={place.tab ?? "chat"} at={place.at} />;
    case "replay":
      return <Replay />;
    default:
      return <p>{place.room}</p>;
  }
}

interface SessionProps {
  readonly sessionId: string;
  readonly tab: Tab;
  readonly at: number | undefined;
}

function Session({ sessionId, tab, at }: SessionProps): ReactNode {
  const room = { sessionId, at };
  if (tab === "changes") return <Changes {...room} />;
  if (tab === "envelopes") return <Envelopes {...room} />;
  return <Chat {...room} />;
}
