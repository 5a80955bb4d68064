"""Follow the commands in terminals of the server and of agents, while a view is made."""

from collections.abc import Mapping

from msgspec.structs import replace

from sandboxagent.client.items import MAX_OUTPUT, OwnTerminal, end_of_output, new_terminal, update_terminal
from sandboxagent.client.view import OpenCall, TerminalView
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Object, text_at


class Terminals:
    """The terminals of a session."""

    def __init__(self, terminals: Mapping[str, TerminalView]) -> None:
        self._terminals = dict(terminals)
        self._written: dict[str, tuple[list[str], int]] = {}
        """Pieces of output that are not in their terminals yet, and the number of their characters."""

    def give(self) -> dict[str, TerminalView]:
        """Return all terminals, never to be changed again."""
        for terminal_id in list(self._written):
            self._finish(terminal_id)
        return dict(self._terminals)

    def take_answer(self, call: OpenCall, result: Object, event: int) -> None:
        """Take the answer to a call about a terminal."""
        terminal_id = text_at(result if call.method == methods.TERMINAL_CREATE else call.params, "terminalId")
        if terminal_id is None:
            return
        self._finish(terminal_id)
        known = self._terminals.get(terminal_id) or new_terminal(terminal_id, call)
        changed = update_terminal(known, call.method, result)
        self._terminals[terminal_id] = replace(changed, events=known.events.plus(event))

    def take_update(self, update: Object, event: int) -> None:
        """Take the facts that an update of a tool call has about a terminal of the agent's own."""
        facts = OwnTerminal.of(update)
        if facts is None:
            return
        id = facts.terminal_id
        known = self._terminals.get(id) or new_terminal(id)
        self._terminals[id] = replace(
            known,
            cwd=known.cwd if facts.cwd is None else facts.cwd,
            exit=known.exit if facts.exit is None else facts.exit,
            events=known.events.plus(event),
        )
        pieces, size = self._written.pop(id, ([], 0))
        pieces.append(facts.output)
        self._written[id] = pieces, size + len(facts.output)
        if size > MAX_OUTPUT:
            self._finish(id)

    def _finish(self, terminal_id: str) -> None:
        pieces, _ = self._written.pop(terminal_id, ((), 0))
        known = self._terminals.get(terminal_id)
        if known is not None and pieces:
            output, is_cut = end_of_output(known.output + "".join(pieces))
            self._terminals[terminal_id] = replace(known, output=output, truncated=known.truncated or is_cut)
