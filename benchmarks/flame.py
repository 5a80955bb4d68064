"""Sample where the server's CPU time goes during turns (`./dev bench flame`).

It prints a table of functions and draws a flame graph, for our server alone. The server runs under `sampled.py`. 32
clients take turns with an idempotency key, as our SDKs do.
"""

from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from build import HERE, Tools
from load import Load
from report import number, table
from servers import Ours

CLIENTS = 32
WIDTH, ROW = 1200, 16
LEAST = 0.004
"""The smallest share of the total that is drawn."""
SERVING = "asyncio.runners.Runner.run"
WRITER = "log-writer"
COLOURS = {"http": "#e0a458", "sessions": "#6aa84f", "log": "#5b8db8", "agents": "#a479b8"}
OTHER = "#b8b8b0"


@dataclass(slots=True)
class Frame:
    """A function at one position in the stacks, with the functions that it calls."""

    name: str
    micros: int = 0
    callees: dict[str, "Frame"] = field(default_factory=dict[str, "Frame"])

    def add(self, stack: list[str], micros: int) -> None:
        self.micros += micros
        if stack:
            self.callees.setdefault(stack[0], Frame(stack[0])).add(stack[1:], micros)


@dataclass(frozen=True, slots=True)
class Profile:
    turns: int
    stacks: list[tuple[list[str], int]]

    def frames(self) -> Frame:
        root = Frame("all")
        for stack, micros in self.stacks:
            root.add(stack, micros)
        return root


def measure(tools: Tools, turns: int) -> Profile:
    """Sample a server while each client takes `turns` turns."""
    folded = tools.agent.with_name("stacks.folded")
    program = Ours(tools.agent, python_options=(str(HERE / "sampled.py"), str(folded)))
    with program.start() as running:
        targets = program.connect_apart(running, CLIENTS)
        Load(tools, running).turn(targets, turns, 0, "keyed")
    return Profile(CLIENTS * turns, read_stacks(folded))


def read_stacks(folded: Path) -> list[tuple[list[str], int]]:
    """Read the stacks of the server's threads, without the frames that lead to the event loop or the log's thread."""
    found: list[tuple[list[str], int]] = []
    for line in folded.read_text().splitlines():
        names, _, micros = line.rpartition(" ")
        stack = names.split(";")
        if SERVING in stack:
            found.append((["event loop", *stack[stack.index(SERVING) + 1 :]], int(micros)))
        elif stack[0] == WRITER:
            found.append((["thread of the log", *stack[4:]], int(micros)))
    return found


def page(profile: Profile, facts: list[str]) -> str:
    """Return a table of the most expensive functions, with and without the functions that they call."""
    total = sum(micros for _, micros in profile.stacks)
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for stack, micros in profile.stacks:
        own[stack[-1]] += micros
        for name in set(stack):
            whole[name] += micros
    rows = [
        [f"`{name}`", f"{micros / total:.1%}", f"{own[name] / total:.1%}", number(micros / profile.turns)]
        for name, micros in whole.most_common(40)
    ]
    header = ["function", "with all that it calls", "itself", "µs a turn"]
    lines = [f"- {line}" for line in facts]
    return "\n".join([*lines, f"- {profile.turns:,} turns", "", *table(header, rows), ""])


def plot(profile: Profile) -> str:
    """Draw the stacks as an SVG. The width is CPU time; a caller is below the functions that it calls."""
    root = profile.frames()
    boxes: list[str] = []
    deepest = _draw(root, 0.0, 0, WIDTH / max(1, root.micros), root.micros * LEAST, boxes, root.micros)
    height = (deepest + 1) * ROW
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    head = f'{svg} font-family="monospace" font-size="10"><g transform="translate(0 {height - ROW})">'
    return "\n".join([head, *boxes, "</g></svg>", ""])


def _draw(frame: Frame, x: float, depth: int, scale: float, least: float, boxes: list[str], total: int) -> int:
    width = frame.micros * scale
    colour = COLOURS.get(frame.name.partition(".")[0], OTHER)
    letters = int(width / 6.2)
    text = escape(frame.name.split(".")[-1] if letters < len(frame.name) else frame.name)[: max(0, letters)]
    label = f'<text x="{x + 2:.1f}" y="{-depth * ROW + 11}">{text}</text>' if letters > 3 else ""
    title = f"<title>{escape(frame.name)} {frame.micros / total:.1%}</title>"
    box = f'<rect x="{x:.1f}" y="{-depth * ROW}" width="{width:.1f}" height="{ROW - 1}" fill="{colour}">{title}</rect>'
    boxes.append(box + label)
    deepest = depth
    for callee in sorted(frame.callees.values(), key=lambda each: each.name):
        if callee.micros >= least:
            deepest = max(deepest, _draw(callee, x, depth + 1, scale, least, boxes, total))
        x += callee.micros * scale
    return deepest
