"""How a failure is told: one line, then the last of what the failing program wrote."""

import sys

from sandbox_agent.cli.arguments import complain
from sandbox_agent.cli.output import harmless
from sandbox_agent.errors import SandboxAgentError, SettingsError

EXIT_FAILED, EXIT_MISTAKE = 1, 2
MOST_LINES = 20


def tell(error: SandboxAgentError) -> int:
    """Say what went wrong; gives the exit code."""
    describe(str(error), error.fields.get("stderr"))
    return EXIT_MISTAKE if isinstance(error, SettingsError) else EXIT_FAILED


def describe(sentence: str, stderr: object) -> None:
    """A sentence on one line, and the end of what a program wrote to stderr, if it did."""
    complain(harmless(" ".join(sentence.split())))
    lines = harmless(stderr).strip().splitlines() if isinstance(stderr, str) else []
    if len(lines) > MOST_LINES:
        lines = ["…", *lines[-MOST_LINES:]]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)
