"""`sandbox-agent sessions …`: the sessions of a running server: its grammar."""

from collections.abc import Callable

from sandbox_agent.cli.arguments import Arguments, Parser, natural
from sandbox_agent.cli.commands import Command, Group, Word
from sandbox_agent.cli.endpoint import ACCESS, add_endpoint_flags

EXAMPLES = """\
  sandbox-agent sessions list
      what there is, newest first
  sandbox-agent sessions events 0198c2
      what was said in the session whose id begins so
  sandbox-agent sessions terminate 0198c2
      end it for good; what was said stays
"""
_ID = "Its id or alias, or enough of the beginning to tell it from others."


def group() -> Group:
    """All commands about sessions."""
    return Group(
        "sandbox-agent sessions",
        "See, name and end the sessions of a running server.",
        EXAMPLES,
        {
            "list": Word("all sessions, newest first", _list),
            "show": Word("everything known of one session", _show),
            "events": Word("what was said in a session", _events),
            "rename": Word("give a session another title", _rename),
            "set": Word("note facts about a session", _set),
            "terminate": Word("end sessions for good; their logs stay", _terminate),
            "delete": Word("delete sessions and their logs", _delete),
        },
    )


def _list() -> Command:
    parser = _parser(
        "list",
        "",
        "List the sessions. A session is running (a turn is under way), waiting (its agent has asked something\n"
        "and nobody has answered), idle, or ended.",
        "  sandbox-agent sessions list --cwd . --agent claude\n"
        "  sandbox-agent sessions list --json | jq -r '.sessions[] | select(.pending > 0) | .sessionId'\n",
    )
    parser.add_argument("--cwd", metavar="PATH", help="Only those of this directory.")
    parser.add_argument("--agent", metavar="AGENT", help="Only those of this agent.")
    parser.add_argument("--limit", metavar="NUMBER", type=natural, help="Only so many, the newest.")
    return _command(parser, _run_list)


def _show() -> Command:
    parser = _parser(
        "show",
        "SESSION",
        "Show everything known of one session.",
        "  sandbox-agent sessions show 0198c2\n  sandbox-agent sessions show 0198c2 --json | jq .metadata\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    return _command(parser, _run_show)


def _events() -> Command:
    parser = _parser(
        "events",
        "SESSION",
        "Show the log of a session: what clients, its agent and the server have said, a line for each. A line\n"
        "has the number of the event, when it was, and who spoke; what is too long for the terminal is cut.\n"
        "With --json each line is an object with id, at, direction and envelope.",
        "  sandbox-agent sessions events 0198c2 --follow\n"
        "  sandbox-agent sessions events 0198c2 --after 120\n"
        "  sandbox-agent sessions events 0198c2 --json | jq 'select(.direction == \"fromClient\").envelope'\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("--after", metavar="ID", type=natural, help="Only what came after the event of this number.")
    parser.add_argument("-f", "--follow", action="store_true", help="Go on with what comes, until interrupted.")
    return _command(parser, _run_events, json="Print JSON lines.")


def _rename() -> Command:
    parser = _parser(
        "rename",
        "SESSION TITLE",
        "Give a session another title. Its agent may change it again.",
        "  sandbox-agent sessions rename 0198c2 'Fix the build'\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("title", metavar="TITLE", help="The title.")
    return _command(parser, _run_rename)


def _set() -> Command:
    parser = _parser(
        "set",
        "SESSION KEY=TEXT...",
        "Note facts about a session, its metadata; what is there under other keys stays. All of it is printed.",
        "  sandbox-agent sessions set 0198c2 ticket=A-1 owner='Ada L.'\n"
        '  sandbox-agent sessions set 0198c2 priority:=3 \'labels:=["a", "b"]\'\n'
        "      numbers, lists and so on, as JSON\n"
        "  sandbox-agent sessions set 0198c2 ticket:=null\n"
        "      take a fact away\n",
    )
    parser.add_argument("session", metavar="SESSION", help=_ID)
    parser.add_argument("facts", metavar="KEY=TEXT", nargs="+", help="A text; KEY:=JSON for anything else.")
    return _command(parser, _run_set)


def _terminate() -> Command:
    parser = _parser(
        "terminate",
        "SESSION...",
        "End sessions for good: the turn is cancelled, and the session cannot be resumed. Its log stays.",
        "  sandbox-agent sessions terminate 0198c2 0198c3\n",
    )
    parser.add_argument("sessions", metavar="SESSION", nargs="+", help=_ID)
    return _command(parser, _run_terminate)


def _delete() -> Command:
    parser = _parser(
        "delete",
        "SESSION...",
        "Delete sessions at their agents, and their logs. Where an agent cannot delete, terminate them first.",
        "  sandbox-agent sessions delete 0198c2\n",
    )
    parser.add_argument("sessions", metavar="SESSION", nargs="+", help=_ID)
    return _command(parser, _run_delete)


def _parser(name: str, words: str, description: str, examples: str) -> Parser:
    return Parser(f"sandbox-agent sessions {name}", description, f"{ACCESS}\nexamples:\n{examples}", words)


def _command(parser: Parser, act: Callable[[Arguments], int], json: str = "Print one JSON document.") -> Command:
    parser.add_argument("--json", action="store_true", help=json)
    add_endpoint_flags(parser)
    return Command(parser, act)


# --- what they do -----------------------------------------------------------------------------------------------------


def _run_list(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import print_sessions

    return print_sessions(arguments)


def _run_show(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import print_session

    return print_session(arguments)


def _run_events(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_log import print_events

    return print_events(arguments)


def _run_rename(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import set_metadata

    return set_metadata(arguments, {"title": arguments.word("title")})


def _run_set(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import read_facts, set_metadata

    return set_metadata(arguments, read_facts(arguments.words("facts")))


def _run_terminate(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import terminate

    return terminate(arguments)


def _run_delete(arguments: Arguments) -> int:
    from sandbox_agent.cli.session_calls import delete

    return delete(arguments)
