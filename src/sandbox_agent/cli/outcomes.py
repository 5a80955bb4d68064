"""What came of each agent that was to be installed or removed: a line at once, or one JSON document at the end."""

import msgspec
from msgspec import UNSET, Raw, Struct

from sandbox_agent.cli import failures
from sandbox_agent.cli.installing import Failed, Removal
from sandbox_agent.cli.output import harmless, print_json
from sandbox_agent.wire.agents import InstallResult


class Failure(Struct):
    """An agent, and the problem with it as the server would tell it."""

    agent: str
    error: Raw


class Outcomes:
    """Collects them."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._all: list[InstallResult | Removal | Failure] = []

    def tell(self, result: InstallResult | Removal | Failed) -> None:
        """Take one more; a failure is told on stderr in any case."""
        if isinstance(result, Failed):
            from sandbox_agent.http.problems import document

            failures.tell(result.error)
            self._all.append(Failure(result.agent, Raw(document(result.error))))
            return
        self._all.append(result)
        if not self._as_json:
            print(harmless(_sentence(result)), flush=True)

    def finish(self) -> int:
        """Print the document, if there is to be one; gives the exit code."""
        if self._as_json:
            print_json(msgspec.json.encode({"agents": self._all}))
        failed = any(isinstance(each, Failure) for each in self._all)
        return failures.EXIT_FAILED if failed else 0


def _sentence(result: InstallResult | Removal) -> str:
    if isinstance(result, Removal):
        return f"{result.agent} is removed" if result.uninstalled else f"{result.agent} is not installed"
    name = f"{result.agent} {result.version}" if result.version else result.agent
    how = "is there already" if result.already_installed else "is installed"
    native = "" if result.native_version is UNSET else f", with version {result.native_version} of the agent itself"
    return f"{name} {how} ({result.source}){native}"
