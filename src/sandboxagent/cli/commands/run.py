"""Define the command line of `sandbox-agent run` and `sandbox-agent attach`."""

from sandboxagent.cli.flags import ACCESS, add_flags, add_node_flag
from sandboxagent.cli.parser import Command, ParsedArguments, Parser, natural, require_at_a_terminal
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE

RUN_DESCRIPTION = f"""\
Give an agent a prompt and show what it says and does; without a prompt, talk to it. The prompt is
the argument, or stdin, or both: then stdin follows the argument.

--endpoint or {ENDPOINT_VARIABLE} names the server. Without them, it is the server that runs on
the data directory. If none runs, the command starts one in the background. That server serves all
your terminals, and stops after 30 minutes without work (SANDBOX_AGENT_IDLE_EXIT, or idle_exit in
config.toml, changes that). The session is kept: you can continue it with --session or --continue,
which shows its last turns first. If the agent is not installed, it is installed first.

You answer the agent's requests at the terminal: permissions, questions, forms. Without a terminal
they are rejected. If stdout is a pipe, it gets only the agent's words; everything else goes to stderr.
"""

RUN_DETAILS = """\
At the terminal: Ctrl-C cancels the turn, or exits if you press it again or no turn is running;
Ctrl-D exits; Alt-Enter starts a new line; the tab key completes commands, and /help lists them, the
agent's own included. The arrow keys bring back earlier input, also of earlier runs: it is kept in the
file input-history in the data directory, which only you can read. A line that begins with a space is
not kept. Long output of tools and long changes are folded; /show shows them whole.

One key answers a permission, and the arrow keys and Enter choose among all options. A reason may
follow a rejection, and then Enter: "r use unittest instead". The agent gets it with the next prompt.

The exit code is 0 if the turn ended normally, 1 if something failed, 2 for a mistake in the
command line, 3 if the agent had to stop (max_tokens, max_turn_requests), 4 if it refused,
130 if the turn was cancelled.

With --json, each line is an envelope of the turn as it is on the wire, and the last line is the
result or the error: {"result": {"sessionId", "agent", "cwd", "text", "stopReason", ...}} or
{"error": {"message", ...}}.
"""

RUN_EXAMPLES = """\
  sandbox-agent run claude "what does this project do?"
  sandbox-agent run claude
      talk to it
  sandbox-agent run codex "review this" < changes.diff > review.md
  sandbox-agent run claude "fix the tests" --permission-mode acceptEdits --cwd ~/project
  sandbox-agent run mock hello --json | jq -r 'select(.result).result.text'
  sandbox-agent run claude "and now?" --session 0198c2
      continue the session whose id begins with 0198c2
  sandbox-agent run -c
      continue the newest session of this directory; run claude -c the newest one of claude
"""


def run_command() -> Command:
    """Make the command `run`."""
    parser = Parser(
        "sandbox-agent run", RUN_DESCRIPTION, f"{RUN_DETAILS}\n{ACCESS}\nexamples:\n{RUN_EXAMPLES}", "[AGENT] [PROMPT]"
    )
    parser.add_argument(
        "agent",
        metavar="AGENT",
        nargs="?",
        help="Its id, or its slug in the ACP registry. Optional with --continue and --session: one word is then the "
        "prompt, unless it names an agent.",
    )
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="The prompt; - is stdin.")
    parser.add_argument("--cwd", metavar="DIR", help="The session's directory, on the server's machine (default: .).")
    add_node_flag(parser, "for a new session")
    parser.add_argument(
        "--session", metavar="SESSION", help="Continue this session: its id, its alias, or the beginning of either."
    )
    parser.add_argument(
        "-c",
        "--continue",
        action="store_true",
        help="Continue the newest session of this directory, or of AGENT in it.",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="The model to use; nothing is sent if the agent does not have it."
    )
    parser.add_argument("--mode", metavar="MODE", help="The agent's mode.")
    parser.add_argument(
        "--permission-mode",
        metavar="MODE",
        help="How much the agent may do without asking: default, acceptEdits, plan, read-only, bypassPermissions, or a "
        "mode of its own.",
    )
    parser.add_argument("--title", metavar="TITLE", help="The session's title.")
    parser.add_argument(
        "-e",
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        help="Pass an environment variable to the agent of a new session, such as a key that the server was started "
        "without. Without VALUE, your shell's value is passed. The session gets an agent process of its own. "
        "May be repeated.",
    )
    parser.add_argument(
        "-f",
        "--attach-file",
        metavar="PATH",
        action="append",
        help="Send a file or directory of the server's machine with the prompt. May be repeated.",
    )
    parser.add_argument(
        "-y", "--yes", action="store_true", help="Allow everything the agent asks permission for, once each time."
    )
    parser.add_argument(
        "--no", action="store_true", help="Reject every request of the agent. This is the default without a terminal."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON lines.")
    parser.add_argument("-q", "--quiet", action="store_true", help="Show only the agent's words.")
    parser.add_argument("-v", "--verbose", action="store_true", help="Show all of what tools do, however long.")
    parser.add_argument(
        "--no-daemon",
        action="store_true",
        help="Start a private server that ends with this run. Its sessions stay in the data directory, which no other "
        "server may use at that time.",
    )
    add_server_flags(parser)
    return Command(parser, _run)


def add_server_flags(parser: Parser) -> None:
    """Add the flags that select a server, for a command that can also find or start one."""
    text = f"Address of the server. (default: {ENDPOINT_VARIABLE}, else the server on the data directory)"
    parser.add_argument("--endpoint", metavar="URL", help=text)
    parser.add_argument("--token", metavar="TOKEN", help="The server's token.")
    parser.add_argument("--token-file", metavar="PATH", help="File that holds the token.")
    add_flags(parser, {"config_dir", "data_dir"})


def _run(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.chat.run import start_run

    require_at_a_terminal("prompt_toolkit")
    return start_run(arguments)


ATTACH_DESCRIPTION = """\
Show the last turn of a session, and then everything that happens in it: prompts, the agent's words
and actions, and decisions. You can answer the agent's requests here; the first answer from any client
counts. A line you type is sent as a prompt.

Ends when the session ends. On a terminal, it stays when the agent crashes, and goes on when a prompt
resumes the session. Ctrl-C or Ctrl-D exits, and the session continues.
"""

ATTACH_DETAILS = """\
In a pipe, with --json and with --read-only you are asked nothing and cannot type. If stdout is a
pipe, it gets only the agent's words; everything else goes to stderr. With --json, each line is an
envelope of the session's log: prompts, updates, requests and answers.

The exit code is 0 if the session has ended or you left it, 1 if its agent died for good (in a pipe:
if it died) or the server is gone, 130 after Ctrl-C.
"""

ATTACH_EXAMPLES = """\
  sandbox-agent attach 0198c2
      the session whose id begins with 0198c2
  sandbox-agent attach my-task --history 5
  sandbox-agent attach my-task --all --read-only
  sandbox-agent attach my-task --json | jq 'select(.method == "session/request_permission")'
"""


def attach_command() -> Command:
    """Make the command `attach`."""
    parser = Parser(
        "sandbox-agent attach",
        ATTACH_DESCRIPTION,
        f"{ATTACH_DETAILS}\n{ACCESS}\nexamples:\n{ATTACH_EXAMPLES}",
        "SESSION",
    )
    parser.add_argument("session", metavar="SESSION", help="Its id or alias, or a unique beginning of one.")
    parser.add_argument("--history", metavar="NUMBER", type=natural, help="How many past turns to show (default: 1).")
    parser.add_argument("--all", action="store_true", help="Show the whole session.")
    parser.add_argument("--read-only", action="store_true", help="Only watch: ask nothing, send nothing.")
    parser.add_argument("--json", action="store_true", help="Print JSON lines.")
    parser.add_argument("-q", "--quiet", action="store_true", help="Show only the agent's words.")
    parser.add_argument("-v", "--verbose", action="store_true", help="Show all of what tools do, however long.")
    add_server_flags(parser)
    return Command(parser, _attach)


def _attach(arguments: ParsedArguments) -> int:
    from sandboxagent.cli.chat.run import start_attaching

    require_at_a_terminal("prompt_toolkit")
    return start_attaching(arguments)
