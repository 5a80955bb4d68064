"""`sandbox-agent attach`: a session that is there, shown and talked to: its grammar."""

from sandbox_agent.cli.commands.run import add_server_flags
from sandbox_agent.cli.endpoint import ACCESS
from sandbox_agent.cli.grammar import Arguments, Command, Parser, natural

DESCRIPTION = """\
Show the last turn of a session, and what happens there from now on: what people say to the agent,
what it says and does, what is decided. What the agent asks can be answered here, too; the first
answer counts, wherever it is given. A line that is typed is sent as a prompt.

It ends with the session, or with Ctrl-C or Ctrl-D; the session goes on.
"""

DETAILS = """\
In a pipe, with --json and with --read-only nothing is asked and nothing can be typed. When stdout is
a pipe, only the agent's words go there, and everything else to stderr. With --json, each line is an
envelope of the session's log: prompts, updates, what the agent asks, answers.

The exit code is 0 when the session has ended or was left, 1 when its agent died or the server is
gone, 130 after Ctrl-C.
"""

EXAMPLES = """\
  sandbox-agent attach 0198c2
      the session whose id begins so
  sandbox-agent attach my-task --history 5
  sandbox-agent attach my-task --all --read-only
  sandbox-agent attach my-task --json | jq 'select(.method == "session/request_permission")'
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent attach", DESCRIPTION, f"{DETAILS}\n{ACCESS}\nexamples:\n{EXAMPLES}", "SESSION")
    parser.add_argument(
        "session", metavar="SESSION", help="Its id or alias, or enough of the beginning to tell it from others."
    )
    parser.add_argument("--history", metavar="NUMBER", type=natural, help="How many past turns to show (default: 1).")
    parser.add_argument("--all", action="store_true", help="Show all that was said.")
    parser.add_argument("--read-only", action="store_true", help="Only look: ask nothing, send nothing.")
    parser.add_argument("--json", action="store_true", help="Print JSON lines.")
    parser.add_argument("-q", "--quiet", action="store_true", help="Show the agent's words, and nothing else.")
    add_server_flags(parser)
    return Command(parser, _attach)


def _attach(arguments: Arguments) -> int:
    from sandbox_agent.cli.talk.attaching import start

    return start(arguments)
