"""Every screen of the Inspector and every state of it, on a server with sessions that look like work.

`test_screens.py` goes through them; as a program this takes their pictures, light and dark, at three widths:
`python -m tests.inspector.screens dist/screens [name ...]`; with `--docs` alone, those of the docs.
"""

import json
import signal
import sys
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sandboxagent import RequestError
from sandboxagent.client.sync import SandboxAgent, Turn
from tests.inspector.agent_browser import AgentBrowser
from tests.inspector.browsing import WIDTHS, Tab
from tests.support.running import BOUND, TOKEN, Server, eventually, scripted

AGENT, FRAGILE = "pilot", "fragile"
ANSWER = """\
The limiter now keeps **one window per key**. Three things to know:

| file | what changed |
|---|---|
| `limits.py` | a sliding window instead of a fixed one |
| `app.py` | the middleware reads `X-Forwarded-For` only behind a proxy |

1. The old counters expire by themselves.
2. Tests cover
   - bursts at the edge of a window
   - clocks that jump

```python
def allow(self, key: str, now: float) -> bool:
    window = self.windows.setdefault(key, deque())
    while window and window[0] <= now - self.seconds:
        window.popleft()
    return len(window) < self.most
```

One test still fails: it sets the clock back. Should a window forgive that?
"""
OLD = """\
class Limiter:
    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.counts: dict[str, int] = {}

    def allow(self, key: str) -> bool:
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key] <= self.most
"""
NEW = """\
from collections import deque


class Limiter:
    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self.windows: dict[str, deque[float]] = {}

    def allow(self, key: str, now: float) -> bool:
        window = self.windows.setdefault(key, deque())
        while window and window[0] <= now - self.seconds:
            window.popleft()
        window.append(now)
        return len(window) <= self.most
"""
TESTS = (
    "\x1b[1m$ pytest -q tests/test_limits.py\x1b[0m\n\x1b[32m........\x1b[0m\x1b[31mF\x1b[0m\n"
    "\x1b[31m1 failed\x1b[0m, 8 passed in 0.42s\n"
)
OPTIONS = [
    {"optionId": "once", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]
STEPS = ("Read how requests are counted", "Keep a sliding window per key", "Test bursts and clocks that jump")
RTL = "إصلاح حدود الطلبات في الواجهة العامة"
LARGE = 10_000
LONG = "Rename-every-occurrence-of-the-deprecated-configuration-loader-in-the-monorepo-and-its-forty-seven-packages"


def plan(done: int) -> list[Any]:
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
    entries = [
        {"content": step, "priority": "medium", "status": state} for step, state in zip(STEPS, states, strict=False)
    ]
    return ["update", {"sessionUpdate": "plan", "entries": entries}]


def call(id: str, kind: str, title: str, status: str = "completed", **more: Any) -> list[Any]:
    return [
        "update",
        {"sessionUpdate": "tool_call", "toolCallId": id, "kind": kind, "title": title, "status": status, **more},
    ]


def content(text: str) -> list[Any]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def work(folder: str) -> list[Any]:
    """A turn with a plan, a thought, tool calls, a diff and an answer."""
    path = f"{folder}/limits.py"
    thought = (
        "A fixed window lets twice the limit through at its edge. A deque of times per key is exact and small enough."
    )
    return [
        plan(0),
        ["update", {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": thought}}],
        call("c1", "read", "Read limits.py", locations=[{"path": path, "line": 1}], content=content(OLD)),
        plan(1),
        call(
            "c2",
            "edit",
            "Edit limits.py",
            locations=[{"path": path, "line": 1}],
            content=[{"type": "diff", "path": path, "oldText": OLD, "newText": NEW}],
        ),
        plan(2),
        call(
            "c3",
            "execute",
            "pytest -q tests/test_limits.py",
            "failed",
            content=content(TESTS),
            rawInput={"command": "pytest -q tests/test_limits.py"},
        ),
        ["say", ANSWER],
        [
            "update",
            {
                "sessionUpdate": "usage_update",
                "used": 48_211,
                "size": 200_000,
                "cost": {"amount": 0.4127, "currency": "USD"},
            },
        ],
    ]


def large(folder: str) -> list[Any]:
    """A file of ten thousand lines that is generated anew: every fourth line is another one."""
    olds = [f'    field_{number} = Field({number}, name="field{number}", type=Text)' for number in range(LARGE)]
    news = [line.replace("type=Text", "kind=Text()") if at % 4 == 2 else line for at, line in enumerate(olds)]
    path = f"{folder}/schema.py"
    diff = {"type": "diff", "path": path, "oldText": "\n".join(olds) + "\n", "newText": "\n".join(news) + "\n"}
    return [
        call("c7", "edit", "Write schema.py", locations=[{"path": path, "line": 1}], content=[diff]),
        ["say", "The schema is generated anew."],
    ]


def permission(folder: str) -> list[Any]:
    path = f"{folder}/app.py"
    diff = {
        "type": "diff",
        "path": path,
        "oldText": "limiter = Limiter(100, 60)\n",
        "newText": "limiter = Limiter(100, 60)\nproxies = Proxies.from_env()\n",
    }
    asked = {
        "toolCallId": "c9",
        "title": "Edit app.py",
        "kind": "edit",
        "content": [diff],
        "locations": [{"path": path, "line": 1}],
    }
    return [["ask", "session/request_permission", {"toolCall": asked, "options": OPTIONS}], ["wait_answer"]]


def command(folder: str) -> list[Any]:
    asked = {
        "toolCallId": "c8",
        "title": "git push --force-with-lease origin rate-limits",
        "kind": "execute",
        "rawInput": {"command": "git push --force-with-lease origin rate-limits", "cwd": folder},
    }
    return [["ask", "session/request_permission", {"toolCall": asked, "options": OPTIONS}], ["wait_answer"]]


def question(folder: str) -> list[Any]:
    options = [
        {"id": "memory", "label": "In memory", "description": "Fast and simple; each process has its own"},
        {"id": "redis", "label": "Redis", "description": "Shared by all processes; one more thing to run"},
    ]
    asked = {"header": "Cache", "question": "Where should results be kept?", "multiSelect": False, "options": options}
    params = {"questionId": "q-1", "prompt": asked["question"], "options": [], "questions": [asked]}
    return [["ask", "_sandboxagent/session/request_question", params], ["wait_answer"]]


def form(folder: str) -> list[Any]:
    properties = {
        "version": {"type": "string", "title": "Version", "default": "2.4.0"},
        "channel": {"type": "string", "title": "Channel", "enum": ["stable", "beta"], "default": "beta"},
        "notes": {"type": "boolean", "title": "Write release notes", "default": True},
    }
    schema = {"type": "object", "properties": properties, "required": ["version"]}
    params = {"mode": "form", "message": "How should it be released?", "requestedSchema": schema}
    return [["ask", "elicitation/create", params], ["wait_answer"]]


def running(folder: str) -> list[Any]:
    said = "The suites of `billing` and `search` pass with pytest. Next is `accounts`, which has fixtures of its own."
    return [["say", said], call("c5", "execute", "pytest -q accounts", "in_progress"), ["wait_cancel"]]


PROMPTS: dict[str, tuple[str, str, Callable[[str], list[Any]]]] = {
    "work": (
        "Rate limits for the public API",
        "Bursts at the edge of a minute get through our rate limit. Find out why, and fix it. Keep it small.",
        work,
    ),
    "rtl": (
        RTL,
        "لماذا تتجاوز الطلبات الحد؟",
        lambda _: [["say", "تم. كل شيء يعمل الآن، و`limits.py` فيه نافذة لكل مفتاح."]],
    ),
    "long": (
        LONG,
        "Rename it everywhere",
        lambda _: [["say", f"{'x' * 4_000}\n\n- [x] done\n\n[a link](https://example.org)"]],
    ),
    "large": ("Generate the schema anew", "Generate schema.py from the new definitions.", large),
    "permission": (
        "Trust proxies of our own network",
        "Read the client's address from the proxy, if it is ours.",
        permission,
    ),
    "command": ("Publish the branch", "Push it.", command),
    "question": ("Cache for the search page", "Cache the results of searches.", question),
    "form": ("Release 2.4", "Prepare the release.", form),
    "running": ("Move the tests to pytest", "Move the old suites to pytest, one package after the other.", running),
}
"""Sessions of the scripted agent: their title, what is asked, and what it does then."""
WAITING = ("permission", "command", "question", "form")
BLANK = "blank"
ODD = ("rtl", "long", "large", BLANK)
"""Those that are for trying, and not for showing."""
CRASH = [["stderr", "libpq: undefined symbol: PQsetChunkedRowsMode"], ["stderr", "Aborted"], ["exit", 134]]


@dataclass(slots=True)
class Workshop:
    """A server with sessions in every state, by what they show."""

    server: Server
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    others: list[Server] = field(default_factory=list[Server])
    """Servers where nothing has happened, for what may go wrong with one."""
    closing: ExitStack = field(default_factory=ExitStack)

    def at_another_server(self, tab: Tab) -> Tab:
        """The same page, at a server of its own."""
        self.others.append(self.closing.enter_context(Server("--no-persist")))
        return Tab(tab.browser, self.others[-1].url, TOKEN)

    def freeze(self) -> None:
        """Have the last of those answer nothing until all is over."""
        self.others[-1].process.send_signal(signal.SIGSTOP)
        self.closing.callback(self.others[-1].process.send_signal, signal.SIGCONT)

    def folder(self, name: str) -> str:
        return f"{self.server.work}/{name}"

    def prepare(self) -> None:
        """Write what the scripted agents will do; before they start."""
        acts = {asked: act(self.folder(name)) for name, (_, asked, act) in PROMPTS.items()}
        programs = self.server.directory / "programs.json"
        programs.write_text(json.dumps({**acts, "Upgrade it": CRASH}))
        self.server.agents |= {name: scripted("--programs", str(programs)) for name in (AGENT, FRAGILE)}

    def begin(self, client: SandboxAgent, name: str, agent: str, asked: str, title: str) -> Turn:
        folder = Path(self.folder(name))
        folder.mkdir(exist_ok=True)
        (folder / "limits.py").write_text(NEW)
        (folder / "app.py").write_text("limiter = Limiter(100, 60)\n")
        session = client.sessions.create(agent, cwd=str(folder), title=title)
        self.sessions[name] = session.id
        return session.prompt(asked)

    def fill(self, client: SandboxAgent, without: Collection[str] = ()) -> None:
        if BLANK not in without:
            self.sessions[BLANK] = client.sessions.create(AGENT, cwd=self.server.work, title="Nothing said yet").id
        for name, (title, asked, _) in PROMPTS.items():
            if name in without:
                continue
            turn = self.begin(client, name, AGENT, asked, title)
            if name not in (*WAITING, "running"):
                turn.result()
        with suppress(RequestError):
            self.begin(client, "crash", FRAGILE, "Upgrade it", "Upgrade the database driver").result()
        eventually(lambda: all(client.sessions.get(self.sessions[name]).pending for name in WAITING))


@contextmanager
def workshop(without: Collection[str] = ()) -> Generator[Workshop]:
    made = Workshop(Server())
    made.prepare()
    with made.server as server, made.closing:
        with SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND) as client:
            made.fill(client, without)
        yield made


Go = Callable[[Tab, Workshop], None]


def session(name: str, sees: str, tab_of: str = "") -> Go:
    def go(tab: Tab, made: Workshop) -> None:
        tab.open(f"sessions/{made.sessions[name]}{tab_of}")
        tab.sees(sees)

    return go


def room(path: str, sees: str) -> Go:
    def go(tab: Tab, made: Workshop) -> None:
        tab.open(path.format(work=f"{made.server.work}/work"))
        tab.sees(sees)

    return go


def _empty(tab: Tab, made: Workshop) -> None:
    made.at_another_server(tab).open().sees("No sessions yet")


def _loading(tab: Tab, made: Workshop) -> None:
    """A server that takes its time."""
    page = made.at_another_server(tab).open("agents")
    page.sees("Where it comes from")
    page.follow("Mission control")
    page.sees("No sessions yet")
    made.freeze()
    page.follow("Agents")
    page.until("document.querySelector('main')?.innerText.includes('Loading the agents')")


def _reconnecting(tab: Tab, made: Workshop) -> None:
    page = made.at_another_server(tab).open("new")
    page.sees("First message")
    made.others[-1].stop()
    page.sees("Reconnecting")


def _no_server(tab: Tab, made: Workshop) -> None:
    page = made.at_another_server(tab).open()
    page.sees("Connected")
    page.forget()
    page.open(token=None).sees("Sign in with the server's token")
    made.others[-1].stop()
    page.fill("Token", TOKEN)
    page.press("Enter")
    page.sees("The server does not answer")


def _palette(tab: Tab, made: Workshop) -> None:
    SCREENS["chat"](tab, made)
    tab.press("Control+k")
    tab.sees("Rename session")


def _help(tab: Tab, made: Workshop) -> None:
    SCREENS["chat"](tab, made)
    tab.press("?")
    tab.sees("Keyboard shortcuts")


def _rename(tab: Tab, made: Workshop) -> None:
    SCREENS["chat"](tab, made)
    tab.click("Actions of the session")
    tab.click("Rename session…", role="menuitem")
    tab.sees("The agent may give it another one later.")


def _time(tab: Tab, made: Workshop) -> None:
    tab.open(f"sessions/{made.sessions['work']}?at=12")
    tab.sees("This is how it was after event 12.")


def _token(tab: Tab, made: Workshop) -> None:
    tab.open(token="not this one")
    tab.sees("This is not the server's token")


def _failed(tab: Tab, made: Workshop) -> None:
    tab.open("new?agent=mock&cwd=/does/not/exist")
    tab.click("Start")
    tab.sees("Could not start the session")


def _file(tab: Tab, made: Workshop) -> None:
    tab.open(f"files?path={made.server.work}/work")
    tab.click("File limits.py", exact=False)
    tab.sees("setdefault")


STORY: dict[str, Literal["light", "dark"]] = {
    "mission": "dark",
    "chat": "light",
    "permission": "dark",
    "changes": "light",
    "palette": "light",
}
"""Pictures in the docs, and their theme."""
SCREENS: dict[str, Go] = {
    "mission": room("", "asks for permission"),
    "chat": session("work", "one window per key"),
    "changes": session("work", "limits.py", "?tab=changes"),
    "envelopes": session("work", "session/update", "?tab=envelopes"),
    "session-files": session("work", "limits.py", "?tab=files"),
    "permission": session("permission", "proxies = Proxies.from_env()"),
    "command": session("command", "git push --force-with-lease origin rate-limits"),
    "question": session("question", "Where should results be kept?"),
    "form": session("form", "How should it be released?"),
    "running": session("running", "pytest -q accounts"),
    "crash": session("crash", "PQsetChunkedRowsMode"),
    "time-line": _time,
    "palette": _palette,
    "help": _help,
    "rename": _rename,
    "right-to-left": session("rtl", "limits.py"),
    "long": session("long", "Rename-every-occurrence"),
    "large": session("large", "generated anew"),
    "large-changes": session("large", "kind=Text()", "?tab=changes"),
    "new": room("new", "First message"),
    "new-failed": _failed,
    "agents": room("agents/mock", "Where it comes from"),
    "files": room("files?path={work}", "limits.py"),
    "file": _file,
    "replay": room("replay", "Replay a session"),
    "no-session": room("sessions/none", "Session not found"),
    "no-page": room("nowhere", "Page not found"),
    "wrong-token": _token,
    "empty": _empty,
    "empty-session": session(BLANK, "Nothing said yet"),
    "no-changes": session(BLANK, "No changes", "?tab=changes"),
    "loading": _loading,
    "reconnecting": _reconnecting,
    "no-server": _no_server,
}


def tell(folder: Path) -> None:
    """The pictures of the docs."""
    with workshop(without=ODD) as made, AgentBrowser() as browser, Tab(browser, made.server.url, TOKEN) as tab:
        for name, theme in STORY.items():
            tab.size(1280, 800)
            tab.theme(theme)
            SCREENS[name](tab, made)
            tab.run("new Promise((done) => setTimeout(done, 500))")
            tab.picture(folder.resolve() / f"inspector-{name}.png")


def main(folder: str = "dist/screens", *names: str) -> None:
    with workshop() as made, AgentBrowser() as browser, Tab(browser, made.server.url, TOKEN) as tab:
        for name in names or SCREENS:
            tab.size(1440)
            SCREENS[name](tab, made)
            for width in WIDTHS:
                for theme in ("light", "dark"):
                    tab.size(width)
                    tab.theme(theme)
                    tab.run("new Promise((done) => setTimeout(done, 300))")
                    tab.picture(Path(folder).resolve() / f"{name}-{width}-{theme}.png")
            print(name, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--docs"]:
        tell(Path("docs/pictures"))
    else:
        main(*sys.argv[1:])
