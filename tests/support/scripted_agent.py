"""An ACP agent that does what no honest agent does. Standard library only, so that it starts in a few milliseconds.

Run it as `python -I -S tests/support/scripted_agent.py [flags]`. It ends (exit code 0) at the end of stdin.

Flags
    --no-load --no-list --no-resume --no-fork --no-close --no-delete   leave that out of the capabilities
    --capabilities JSON     answer exactly these `agentCapabilities`
    --session-id ID         answer this id to every session/new and session/fork; `$x` is what the request's
                            `_meta` says of `x`
    --models                offer models the old way: a `models` block instead of a model config option
    --plain                 offer neither modes nor models nor config options
    --settings JSON         offer these `modes`, `models` and `configOptions`; what a client sets is set in all of them.
                            A model `m[x]` of `models` is the option's `m`
    --tells JSON            what the set_ methods send before they answer, by method: "set_mode", "set_model",
                            "set_config_option" or "set_config_option:<configId>", each a list of "mode" and "options"
                            (updates), "vendor" (notifications of its own), "text", and "late options" (after it)
    --lacks METHODS         answer -32601 to these (with commas)
    --dies-at METHODS       SIGKILL itself when one of these comes (with commas)
    --auth                  offer a way to log in (`authMethods`)
    --before-new PROGRAM    play this program with the new session's id before session/new and session/fork are answered
    --state FILE            append a JSON line for every start (`{"started": pid}`) and every session; a later process
                            knows those sessions, and session/load and resume of any other are refused with -32002.
                            Without it they accept every id
    --programs FILE         JSON: programs by prompts, for prompts that people would write
    --banner                write two lines that are no JSON to stdout before anything else
    --slow-start SECONDS    wait before reading stdin
    --exit-at-once [CODE]   write a line to stderr and exit (1)
    --bad-handshake [KIND]  answer initialize with an `error` (the default), with `garbage` (a result that is a string),
                            with `version` 99, or not at all (`silent`)
    --ignore-sigterm        ignore SIGTERM and SIGHUP
    --ignore-eof            stay after the end of stdin

Methods
    initialize, authenticate, logout, session/new, load (replays two updates), resume, fork, list, close, delete,
    set_mode (with its update), set_config_option, set_model: plausible answers. Session ids are `<random>-s1`, `-s2`, …
    session/prompt          plays a program, see below; a text that is none is echoed in one agent_message_chunk
    x/echo                  → {"method", "params", "line": the line as it was received}
    x/hang                  is answered when x/release comes, which answers all that hang with {"released": true}
    x/error                 → an error with `code` and `message` from its params
    x/received              → {"lines": every line received so far, this one included; {} in place of all but the
                               first ten and newest thousand, and of all but the newest hundred long ones}
    anything else           → -32601; notifications are only recorded

Programs
    The text of a prompt is a JSON list of steps. Programs of several prompts run at the same time. A program that has
    not answered its prompt does so at its end: `cancelled` after a session/cancel, else `end_turn`; a step that is
    unknown or fails ends it with -32602. "Reports" means: sends it as the text of an agent_message_chunk. Steps:

    ["say", text]                       an agent_message_chunk
    ["update", update]                  session/update with that update
    ["update_other_session", sid, u]    the same for another session; u may be a text
    ["notify", method, params]          any notification
    ["raw", text, newline=true]         text as it is
    ["rawhex", hex, newline=true]       bytes as they are
    ["half", text, code=0]              text without a newline, then exit
    ["line", bytes]                     one update, its line that long (newline not counted)
    ["flood", n, bytes]                 n updates with texts of that length, numbered, as fast as possible
    ["stderr", text]                    a line on stderr
    ["sleep", seconds]
    ["ask", method, params={}]          a request; gets the `sessionId` unless its params have one, none if they have
                                        null; a `requestId` of "$prompt" becomes the id of the prompt
    ["ask_id", id, method, params={}]   the same with this id; a string is the id's JSON text: "1.0", "\\"a\\"", "0"
    ["wait_answer"]                     wait for the answer to the oldest request of this program not yet waited for
    ["echo_answer"]                     the same unless there is nothing to wait for; reports the answer's line
    ["cancel_own", id]                  $/cancel_request for this id, or without one for the last request
    ["wait_cancel"]                     wait for session/cancel
    ["respond", result]                 answer the prompt now; the program goes on
    ["respond_error", code, message]
    ["answer_twice"]                    answer the prompt twice
    ["answer_unknown_id"]               a response to a request that was never made
    ["exit", code]  ["kill"]            exit, or SIGKILL itself
    ["stop_reading"]                    never read stdin again, nor notice its end
    ["daemon", flags={}]                start a process that sleeps for an hour, report its pid; flags that may be true:
                                        double_fork, setsid, close_fds (0, 1 and 2), ignore_sigterm, clear_env,
                                        change_limit (the one that is the server's mark)
    ["env", name]                       reports the variable as JSON, or null
    ["environ"]                         reports the names of all variables as JSON, sorted
    ["pid"]                             reports the process id
"""

import os
import sys
import time
from _signal import SIG_IGN, SIGHUP, SIGTERM, signal

# Its modules are beside it, where Python keeps them compiled: a start costs a third less than with one long file.
sys.path.append(os.path.realpath(__file__).rpartition("/")[0])

from scripted.agent import Agent
from scripted.light import Event

FLAGS = {
    *("no-load", "no-list", "no-resume", "no-fork", "no-close", "no-delete", "capabilities", "session-id", "models"),
    *("plain", "auth", "settings", "tells", "lacks", "dies-at"),
    *(
        "before-new",
        "state",
        "programs",
        "banner",
        "slow-start",
        "exit-at-once",
        "bad-handshake",
        "ignore-sigterm",
        "ignore-eof",
    ),
}


def main():
    options = parse(sys.argv[1:])
    if "ignore-sigterm" in options:
        signal(SIGTERM, SIG_IGN)
        signal(SIGHUP, SIG_IGN)
    agent = Agent(options)
    agent._remember({"started": os.getpid()})
    if "exit-at-once" in options:
        sys.stderr.write("scripted agent: exiting at once\n")
        sys.stderr.flush()
        os._exit(int(options["exit-at-once"] or 1))
    if "banner" in options:
        agent.wire.write(b"Welcome to the scripted agent!\n[not json either\n")
    time.sleep(float(options.get("slow-start") or 0))
    agent.run()
    if "ignore-eof" in options:
        Event().wait()
    os._exit(0)  # programs may still run, which no longer matter


def parse(arguments):
    """Flags as a dictionary without their dashes. By hand: argparse would be a third of the start-up time."""
    options = {}
    while arguments:
        name = arguments.pop(0).removeprefix("--")
        options[name] = arguments.pop(0) if arguments and not arguments[0].startswith("--") else ""
    unknown = options.keys() - FLAGS
    if unknown:
        sys.exit(f"scripted_agent: unknown flags: {sorted(unknown)}")
    if "bad-handshake" in options:
        options["bad-handshake"] = options["bad-handshake"] or "error"
    return options


if __name__ == "__main__":
    main()
