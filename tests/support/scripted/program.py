"""What the scripted agent does with a prompt: one step after another."""

import os
import sys
import time
from _signal import SIGKILL

from scripted.light import dumps, loads
from scripted.wire import UPDATE, chunk, encode

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
        text = id if isinstance(id, str) else dumps(id)
        self.last_id = loads(text)
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
        os.kill(os.getpid(), SIGKILL)

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
        self.do_say(dumps(os.environ.get(name)))

    def do_environ(self):
        self.do_say(dumps(sorted(os.environ)))

    def do_pid(self):
        self.do_say(str(os.getpid()))


def programs_in(path):
    # Not pathlib: importing it takes longer than the rest of a start.
    with open(path) as file:
        return loads(file.read())


def steps_of(prompt, programs):
    text = "".join(block.get("text", "") for block in prompt if block.get("type") == "text")
    if text in programs:
        return programs[text]
    try:
        program = loads(text)
    except ValueError:
        program = None
    if isinstance(program, list) and all(isinstance(step, list) and step for step in program):
        return program
    return [["say", text]]
