"""Which prompts this program has sent, by the names that the log has for them, and whether one of them runs."""

from sandbox_agent.client import SandboxAgent
from sandbox_agent.envelope import META, Object, object_at, text_at
from sandbox_agent.wire import methods


class OwnPrompts:
    """The prompts that were sent through a client, in their order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._running = False

    def watch(self, client: SandboxAgent) -> None:
        """See what is sent through a client, and what comes."""
        client.tap(self._saw)

    def runs(self) -> bool:
        """Whether the turn that runs is one of ours."""
        return self._running

    def number(self, name: str | None) -> int | None:
        """The how many-th it was, from 0; None for one of somebody else."""
        return None if name is None else self._numbers.get(name)

    def _saw(self, direction: str, envelope: Object, _: int | None) -> None:
        method, params = envelope.get("method"), object_at(envelope, "params")
        if direction == "sent" and method == "session/prompt":
            name = text_at(params, "_meta", META, "promptId")
            if name is not None:
                self._numbers.setdefault(name, len(self._numbers))
        elif direction == "received" and method == methods.TURN:
            own = self.number(text_at(params, "promptId")) is not None
            self._running = own and params.get("state") == "started"
