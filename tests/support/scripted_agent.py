"""An ACP agent that does what no honest agent does. Standard library only, so that it starts in a few milliseconds.

Run it as `python -I -S tests/support/scripted_agent.py [flags]`. It ends (exit code 0) at the end of stdin.

Flags
    --no-load --no-list --no-resume --no-fork --no-close --no-delete   leave that out of the capabilities
    --capabilities JSON     answer exactly these `agentCapabilities`
    --session-id ID         answer this id to every session/new and session/fork
    --models                offer models the old way: a `models` block instead of a model config option
    --plain                 offer neither modes nor models nor config options
    --settings JSON         offer these `modes`, `models` and `configOptions`; what a client sets is set in all of them.
                            A model `m[x]` of `models` is the option's `m`
    --tells JSON            what the set_ methods send before they answer, by method: "set_mode", "set_model",
                            "set_config_option" or "set_config_option:<configId>", each a list of "mode" and "options"
                            (updates), "vendor" (notifications of its own), "text", and "late options" (after it)
    --lacks METHODS         answer -32601 to these (with commas)
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
    x/received              → {"lines": every line received so far, this one included; of long ones only the newest,
                               and {} in place of the others}
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
    ["answer_unknown_id"]               a response to a request that nobody made
    ["exit", code]  ["kill"]            exit, or SIGKILL itself
    ["stop_reading"]                    never read stdin again, nor notice its end
    ["daemon", flags={}]                start a process that sleeps for an hour, report its pid; flags that may be true:
                                        double_fork, setsid, close_fds (0, 1 and 2), ignore_sigterm, clear_env,
                                        change_limit (the one that is the server's mark)
    ["env", name]                       reports the variable as JSON, or null
    ["environ"]                         reports the names of all variables as JSON, sorted
    ["pid"]                             reports the process id
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque

UPDATE = "session/update"
LONG, NEWEST = 4096, 100
"""Bytes of a line that is kept only while it is one of so many newest."""
SLEEPER = """
import os, signal, sys, time
report, *flags = sys.argv[1:]
if "double_fork" in flags and os.fork(): os._exit(0)
if "setsid" in flags: os.setsid()
if "double_fork" in flags and os.fork(): os._exit(0)
if "change_limit" in flags:
    import resource
    resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))
if "ignore_sigterm" in flags: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "close_fds" in flags: [os.close(fd) for fd in (0, 1, 2)]
os.write(int(report), str(os.getpid()).encode())
os.close(int(report))
time.sleep(3600)
"""


class Wire:
    """Stdin and stdout as lines."""

    def __init__(self):
        self.received = []
        self._long = deque()
        self._lock = threading.Lock()
        self._stop, self._wake = os.pipe()

    def write(self, data):
        with self._lock:
            self._write(data)

    def _write(self, data):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:  # nobody reads any more
            os._exit(0)

    def send(self, **fields):
        self.write(encode({"jsonrpc": "2.0", **fields}) + b"\n")

    def stop_reading(self):
        os.write(self._wake, b"x")

    def lines(self):
        """Lines until the end of stdin; blocks for ever after `stop_reading`."""
        pieces = []
        while True:
            ready, _, _ = select.select([0, self._stop], [], [])
            if self._stop in ready:
                threading.Event().wait()
            data = os.read(0, 1 << 16)
            if not data:
                return
            *complete, rest = data.split(b"\n")
            for line in complete:
                whole = b"".join([*pieces, line])
                pieces = []
                if whole.strip():
                    self._remember(whole)
                    yield whole
            pieces.append(rest)

    def _remember(self, line):
        """Tests that share an agent ask for its lines all the time; the images of earlier ones would cost seconds."""
        self.received.append(line.decode("utf-8", "replace"))
        if len(line) > LONG:
            self._long.append(len(self.received) - 1)
        while self._long and self._long[0] < len(self.received) - NEWEST:
            self.received[self._long.popleft()] = "{}"


class Answers:
    """Answers to our own requests, by id; several requests may share one."""

    def __init__(self):
        self._changed = threading.Condition()
        self._waiting = {}
        self._count = 0

    def next_id(self):
        with self._changed:
            self._count += 1
            return self._count - 1

    def expect(self, id):
        ask = {"key": json.dumps(id), "line": None}
        with self._changed:
            self._waiting.setdefault(ask["key"], []).append(ask)
        return ask

    def arrived(self, id, line):
        with self._changed:
            asks = self._waiting.get(json.dumps(id))
            if asks:
                asks.pop(0)["line"] = line.decode("utf-8", "replace")
                self._changed.notify_all()

    def wait(self, ask):
        with self._changed:
            self._changed.wait_for(lambda: ask["line"] is not None)
            return ask["line"]


class Program:
    """One prompt and the steps it consists of."""

    def __init__(self, agent, id, session_id, steps):
        self.agent, self.wire, self.id, self.session_id, self.steps = agent, agent.wire, id, session_id, steps
        self.cancelled = agent.cancellation(session_id)
        self.cancelled.clear()
        self.answered = False
        self.asked = []
        self.last_id = None
        self.last_line = None

    def run(self):
        for name, *arguments in self.steps:
            step = getattr(self, f"do_{name}", None)
            if step is None:
                self.do_respond_error(-32602, f"no such step: {name}")
                return
            try:
                step(*arguments)
            except Exception as problem:
                self.do_respond_error(-32602, f"step {name}: {problem!r}")
                return
        if not self.answered:
            self.do_respond({"stopReason": "cancelled" if self.cancelled.is_set() else "end_turn"})

    def do_say(self, text):
        self.do_update(chunk(text))

    def do_update(self, update):
        self.do_update_other_session(self.session_id, update)

    def do_update_other_session(self, session_id, update):
        update = chunk(update) if isinstance(update, str) else update
        self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": update})

    def do_notify(self, method, params):
        self.wire.send(method=method, params=params)

    def do_raw(self, text, newline=True):
        self.wire.write(text.encode("utf-8", "surrogatepass") + b"\n" * newline)

    def do_rawhex(self, digits, newline=True):
        self.wire.write(bytes.fromhex(digits) + b"\n" * newline)

    def do_half(self, text, code=0):
        self.do_raw(text, newline=False)
        os._exit(code)

    def do_line(self, size):
        head, tail = self._around("")
        if size < len(head) + len(tail):
            raise ValueError(f"a line has at least {len(head) + len(tail)} bytes")
        self.wire.write(b"".join([head, b"x" * (size - len(head) - len(tail)), tail, b"\n"]))

    def do_flood(self, count, size):
        head, tail = self._around("")
        batch, length = [], 0
        for index in range(count):
            line = head + (b"%d " % index).ljust(size, b"x")[:size] + tail + b"\n"
            batch.append(line)
            length += len(line)
            if length > 1 << 18:
                self.wire.write(b"".join(batch))
                batch, length = [], 0
        self.wire.write(b"".join(batch))

    def _around(self, text):
        params = {"sessionId": self.session_id, "update": chunk(text)}
        head, tail = encode({"jsonrpc": "2.0", "method": UPDATE, "params": params}).split(b'"text":""')
        return head + b'"text":"', b'"' + tail

    def do_stderr(self, text):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def do_sleep(self, seconds):
        time.sleep(seconds)

    def do_ask(self, method, params=None):
        self.do_ask_id(self.agent.answers.next_id(), method, params)

    def do_ask_id(self, id, method, params=None):
        text = id if isinstance(id, str) else json.dumps(id)
        self.last_id = json.loads(text)
        self.asked.append(self.agent.answers.expect(self.last_id))
        params = {"sessionId": self.session_id, **(params or {})}
        if params["sessionId"] is None:
            del params["sessionId"]
        if params.get("requestId") == "$prompt":
            params["requestId"] = self.id
        rest = encode({"method": method, "params": params})
        self.wire.write(b'{"jsonrpc":"2.0","id":' + text.encode() + b"," + rest[1:] + b"\n")

    def do_wait_answer(self):
        self.last_line = self.agent.answers.wait(self.asked.pop(0))

    def do_echo_answer(self):
        if self.asked:
            self.do_wait_answer()
        self.do_say(self.last_line or "")

    def do_cancel_own(self, *id):
        self.do_notify("$/cancel_request", {"requestId": id[0] if id else self.last_id})

    def do_wait_cancel(self):
        self.cancelled.wait()

    def do_respond(self, result):
        self.answered = True
        self.wire.send(id=self.id, result=result)

    def do_respond_error(self, code, message):
        self.answered = True
        self.wire.send(id=self.id, error={"code": code, "message": message})

    def do_answer_twice(self):
        self.do_respond({"stopReason": "end_turn"})
        self.do_respond({"stopReason": "end_turn"})

    def do_answer_unknown_id(self):
        self.wire.send(id="nobody-asked", result={})

    def do_exit(self, code):
        os._exit(code)

    def do_kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_stop_reading(self):
        self.wire.stop_reading()

    def do_daemon(self, flags=None):
        import subprocess

        chosen = [name for name, value in (flags or {}).items() if value]
        report, write_end = os.pipe()
        command = [sys.executable, "-I", "-S", "-c", SLEEPER, str(write_end), *chosen]
        process = subprocess.Popen(command, pass_fds=[write_end], env={} if "clear_env" in chosen else None)
        os.close(write_end)
        pid = os.read(report, 32).decode()
        os.close(report)
        if "double_fork" in chosen:
            process.wait()
        self.agent.children.append(process)
        self.do_say(pid)

    def do_env(self, name):
        self.do_say(json.dumps(os.environ.get(name)))

    def do_environ(self):
        self.do_say(json.dumps(sorted(os.environ)))

    def do_pid(self):
        self.do_say(str(os.getpid()))


class Agent:
    """Everything that is not a program."""

    def __init__(self, options):
        self.options = options
        self.programs = programs_in(options["programs"]) if "programs" in options else {}
        self.wire = Wire()
        self.answers = Answers()
        self.sessions = {}
        self.children = []
        self._cancellations = {}
        self._hanging = []
        self._prefix = os.urandom(4).hex()
        self._count = 0

    def run(self):
        for line in self.wire.lines():
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict):
                continue
            if "method" not in message:
                self.answers.arrived(message.get("id"), line)
            elif "id" in message:
                try:
                    self._request(message, line)
                except (KeyError, TypeError, AttributeError) as problem:
                    self.wire.send(id=message["id"], error={"code": -32602, "message": repr(problem)})
            elif message["method"] == "session/cancel":
                self.cancellation(message["params"]["sessionId"]).set()

    def cancellation(self, session_id):
        return self._cancellations.setdefault(session_id, threading.Event())

    def _request(self, message, line):
        id, method, params = message["id"], message["method"], message.get("params") or {}
        if method == "session/prompt":
            program = Program(self, id, params["sessionId"], steps_of(params["prompt"], self.programs))
            threading.Thread(target=program.run, daemon=True).start()
        elif method == "x/hang":
            self._hanging.append(id)
        elif method == "x/echo":
            text = line.decode("utf-8", "replace")
            self.wire.send(id=id, result={"method": method, "params": message.get("params"), "line": text})
        elif method == "x/error":
            code, reason = params.get("code", -32050), params.get("message", "as asked for")
            self.wire.send(id=id, error={"code": code, "message": reason})
        else:
            handler = getattr(self, "on_" + method.replace("/", "_"), None)
            if handler is None or method in self.options.get("lacks", "").split(","):
                self.wire.send(id=id, error={"code": -32601, "message": f"no such method: {method}"})
                return
            result = handler(params)
            if result is not None:
                self.wire.send(id=id, **result)
            if "late options" in self._tells(method, params):
                self._tell_options(params["sessionId"])

    def on_initialize(self, params):
        kind = self.options.get("bad-handshake")
        result = {
            "protocolVersion": 99 if kind == "version" else 1,
            "agentInfo": {"name": "scripted", "version": "1"},
            "agentCapabilities": self._capabilities(),
            "authMethods": [{"id": "browser", "name": "Log in"}] if "auth" in self.options else [],
        }
        if kind == "silent":
            return None
        if kind == "error":
            return {"error": {"code": -32603, "message": "no handshake today"}}
        return {"result": "garbage" if kind == "garbage" else result}

    def _capabilities(self):
        if "capabilities" in self.options:
            return json.loads(self.options["capabilities"])
        offered = {
            name: {} for name in ("list", "resume", "fork", "close", "delete") if f"no-{name}" not in self.options
        }
        return {
            "loadSession": "no-load" not in self.options,
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "sessionCapabilities": offered,
        }

    def on_authenticate(self, params):
        return {"result": {}}

    def on_logout(self, params):
        return {"result": {}}

    def on_session_new(self, params):
        self._count += 1
        session_id = self.options.get("session-id") or f"{self._prefix}-s{self._count}"
        self.sessions[session_id] = {"cwd": params.get("cwd")}
        self._remember({"session": session_id, "cwd": params.get("cwd")})
        early = Program(self, None, session_id, [])
        for name, *arguments in json.loads(self.options.get("before-new", "[]")):
            getattr(early, f"do_{name}")(*arguments)
        return {"result": {"sessionId": session_id, **self._settings(session_id)}}

    on_session_fork = on_session_new

    def on_session_load(self, params):
        session_id = params["sessionId"]
        if self._unknown(session_id):
            return self._no_session(session_id)
        for kind, text in (("user_message_chunk", "an old question"), ("agent_message_chunk", "an old answer")):
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": chunk(text, kind)})
        return self.on_session_resume(params)

    def on_session_resume(self, params):
        session_id = params["sessionId"]
        if self._unknown(session_id):
            return self._no_session(session_id)
        self.sessions.setdefault(session_id, {"cwd": params.get("cwd")})
        return {"result": self._settings(session_id)}

    def on_session_list(self, params):
        known = self._remembered() | {session_id: facts.get("cwd") for session_id, facts in self.sessions.items()}
        return {"result": {"sessions": [{"sessionId": session_id, "cwd": cwd} for session_id, cwd in known.items()]}}

    def on_session_close(self, params):
        self.sessions.pop(params["sessionId"], None)
        return {"result": {}}

    on_session_delete = on_session_close

    def on_session_set_mode(self, params):
        self._set(params, "session/set_mode", "mode", params["modeId"])
        return {"result": {}}

    def on_session_set_config_option(self, params):
        self._set(params, "session/set_config_option", params["configId"], params["value"])
        return {"result": {"configOptions": self._settings(params["sessionId"]).get("configOptions", [])}}

    def on_session_set_model(self, params):
        self._set(params, "session/set_model", "model", params["modelId"])
        return {"result": {}}

    def _set(self, params, method, name, value):
        session_id = params["sessionId"]
        self.sessions.setdefault(session_id, {})[name] = value
        told = self._tells(method, params)
        if "text" in told:
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": chunk(f"[UPDATE] {value}")})
        if "vendor" in told:
            facts = {"v": 1, "sessionId": session_id, f"current{name.capitalize()}Id": value}
            self.wire.send(method=f"vendor/notify/session/{name}-update", params=facts)
        if "mode" in told:
            modes = self._settings(session_id)["modes"]
            update = {"sessionUpdate": "current_mode_update", "currentModeId": modes["currentModeId"]}
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": update})
        if "options" in told:
            self._tell_options(session_id)

    def _tells(self, method, params):
        tells = json.loads(self.options.get("tells", '{"set_mode": ["mode"]}'))
        name = method.removeprefix("session/")
        return tells.get(f"{name}:{params.get('configId')}", tells.get(name, []))

    def _tell_options(self, session_id):
        options = self._settings(session_id).get("configOptions", [])
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": update})

    def on_x_release(self, params):
        hanging, self._hanging = self._hanging, []
        for id in hanging:
            self.wire.send(id=id, result={"released": True})
        return {"result": {"released": len(hanging)}}

    def on_x_received(self, params):
        return {"result": {"lines": self.wire.received}}

    def _settings(self, session_id):
        settings, chosen = self._offered(), self.sessions.get(session_id, {})
        for name in ("mode", "model"):
            if name in chosen and f"{name}s" in settings:
                settings[f"{name}s"][f"current{name.capitalize()}Id"] = chosen[name]
        for option in settings.get("configOptions", []):
            value = chosen.get(option["id"], option["currentValue"])
            option["currentValue"] = value.partition("[")[0] if isinstance(value, str) else value
        return settings

    def _offered(self):
        if "settings" in self.options:
            return json.loads(self.options["settings"])
        if "plain" in self.options:
            return {}
        modes = [{"id": "default", "name": "Default"}, {"id": "plan", "name": "Plan"}]
        block = {"modes": {"currentModeId": "default", "availableModes": modes}}
        if "models" in self.options:
            models = [{"modelId": "small", "name": "Small"}, {"modelId": "large", "name": "Large"}]
            return {**block, "models": {"currentModelId": "small", "availableModels": models}}
        values = [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]
        model = {"id": "model", "name": "Model", "category": "model", "type": "select"}
        return {**block, "configOptions": [{**model, "currentValue": "small", "options": values}]}

    def _unknown(self, session_id):
        return "state" in self.options and session_id not in self.sessions and session_id not in self._remembered()

    def _no_session(self, session_id):
        return {"error": {"code": -32002, "message": f"no such session: {session_id}"}}

    def _remember(self, fact):
        if "state" in self.options:
            with open(self.options["state"], "ab", buffering=0) as file:
                file.write(encode(fact) + b"\n")

    def _remembered(self):
        if "state" not in self.options:
            return {}
        with open(self.options["state"], "rb") as file:
            facts = [json.loads(line) for line in file]
        return {fact["session"]: fact["cwd"] for fact in facts if "session" in fact}


def encode(message):
    return json.dumps(message, separators=(",", ":")).encode()


def chunk(text, kind="agent_message_chunk"):
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def programs_in(path):
    # Not pathlib: importing it takes longer than the rest of a start.
    with open(path) as file:
        return json.load(file)


def steps_of(prompt, programs):
    text = "".join(block.get("text", "") for block in prompt if block.get("type") == "text")
    if text in programs:
        return programs[text]
    try:
        program = json.loads(text)
    except ValueError:
        program = None
    if isinstance(program, list) and all(isinstance(step, list) and step for step in program):
        return program
    return [["say", text]]


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


FLAGS = {
    *("no-load", "no-list", "no-resume", "no-fork", "no-close", "no-delete", "capabilities", "session-id", "models"),
    *("plain", "auth", "settings", "tells", "lacks"),
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
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
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
        threading.Event().wait()
    os._exit(0)  # programs may still run; nobody is interested any more


if __name__ == "__main__":
    main()
