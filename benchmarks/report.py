"""Format results as tables for people, on the terminal and in RESULTS.md."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scenarios import Case, Losses, Run, Sample
from servers import Failed

LEGEND = """\
Each figure is the median of its rounds; the ratio is taken round by round. ↓: lower is better; otherwise higher is.
Events/s: the events that arrived at all readers, divided by the time from sending the prompt to the last event at any
reader. Lost events do not count. Lost: events missing on a reader, of all
that were sent to all readers in all rounds. Expected: the ratio we mean to keep; – where none is set."""


FILES_LEGEND = """\
Each figure is the median of its rounds; the ratio is taken round by round. nginx serves the same file; dd and tar work
on the same disk with no server. Peak: the most memory that our server had, which is to stay below 64 MiB."""


SDK_LEGEND = """\
Each figure is the median of its rounds; the ratio is taken round by round. Updates/s: the updates that a program got,
divided by the time from its prompt to the end of the turn, or to a later last update. Client: the
process that uses the SDK, seen from outside; CPU time per update is that of the burst alone, and before the burst there
is a session and nothing else. The first update counts from the prompt; a start from that of the process."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of a scenario, in pairs: round i of ours and round i of the program beside it."""

    name: str
    expected: str
    case: Case
    ours: Sequence[Run]
    other: Sequence[Run]


@dataclass(slots=True)
class Report:
    facts: list[str]
    other: str
    """Name of the program beside ours."""
    other_missing: str | None
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    alone: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Rows of the table about files, with its header first."""
    files_clean: bool = True
    sdk: list[list[str]] = field(default_factory=list[list[str]])
    """Rows of the table about SDKs, with its header first."""
    sdk_remarks: list[str] = field(default_factory=list[str])
    sdk_clean: bool = True

    def text(self) -> str:
        """Return the whole report as Markdown."""
        parts = ["# Benchmark results", "", *(f"- {line}" for line in self.facts)]
        other = self.other
        if self.other_missing is not None:
            parts.append(f"- {other} not available: {self.other_missing}")
        if self.outcomes:
            header = ["scenario", "ours", other, f"ours/{other}, median (min–max)", "expected", f"lost, ours / {other}"]
            parts += ["", *table(header, [self._row(outcome) for outcome in self.outcomes]), "", LEGEND]
            notes = [row for outcome in self.outcomes for row in _note_rows(outcome)]
            if notes:
                header = ["scenario", "figure", "ours", other, f"ours/{other}"]
                parts += ["", "## Side figures (medians)", "", *table(header, notes)]
        if self.files:
            parts += ["", "## Files", "", *table(self.files[0], self.files[1:]), "", FILES_LEGEND]
        if self.sdk:
            remarks = ["", *(f"- {line}" for line in self.sdk_remarks)] if self.sdk_remarks else []
            parts += ["", "## SDKs", "", *table(self.sdk[0], self.sdk[1:]), "", SDK_LEGEND, *remarks]
        if self.alone:
            rows = [list(row) for row in self.alone]
            parts += ["", "## Ours alone (informational)", "", *table(["what", "figure"], rows)]
        failures = [line for outcome in self.outcomes for line in _failures(outcome, other)]
        if failures:
            parts += ["", "## Failures", "", *(f"- {line}" for line in failures)]
        return "\n".join(parts) + "\n"

    def is_clean(self) -> bool:
        """Whether our own server and SDKs have answered every request, without a loss."""
        runs = [run for outcome in self.outcomes for run in outcome.ours]
        return self.files_clean and self.sdk_clean and are_clean(runs)

    def _row(self, outcome: Outcome) -> list[str]:
        other, ratio = _value(outcome.case, outcome.other), _ratio(outcome)
        if self.other_missing is not None:
            other, ratio = "n/a", f"n/a: {self.other} not available"
        missing = f"{losses(outcome.ours)} / {losses(outcome.other)}"
        title = f"{outcome.case.title} (`{outcome.name}`)"
        return [title, _value(outcome.case, outcome.ours), other, ratio, outcome.expected, missing]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Format a Markdown table that is also aligned in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * width for width in widths]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, rule, *rows]
    ]


def number(value: float) -> str:
    """Format a number with three or more significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def spread(values: Sequence[float]) -> str:
    """Format the median as a ratio, with the range when there are several values."""
    middle = number(statistics.median(values)) + "×"
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"


def samples(runs: Sequence[Run]) -> list[Sample]:
    return [run for run in runs if isinstance(run, Sample)]


def _value(case: Case, runs: Sequence[Run]) -> str:
    values = [sample.value for sample in samples(runs)]
    return f"{number(statistics.median(values))} {case.unit}" if values else "failed" if runs else "–"


def _ratio(outcome: Outcome, value: Callable[[Sample], float] = lambda sample: sample.value) -> str:
    """Return the ratio of ours to the other, round by round."""
    pairs = zip(outcome.ours, outcome.other, strict=False)
    both = [(value(a), value(b)) for a, b in pairs if isinstance(a, Sample) and isinstance(b, Sample)]
    ratios = [ours / other for ours, other in both if other > 0]
    return spread(ratios) if ratios else "–"


def are_clean(runs: Sequence[Run]) -> bool:
    """Whether no run failed, and nothing was lost, repeated or reordered."""
    found = [sample.losses for sample in samples(runs) if sample.losses is not None]
    total = sum(found, Losses())
    return len(samples(runs)) == len(runs) and total == Losses(sent=total.sent)


def losses(runs: Sequence[Run]) -> str:
    """Describe the losses of all rounds together; a dash where nothing can be lost."""
    found = [sample.losses for sample in samples(runs) if sample.losses is not None]
    if not found:
        return "–"
    total = sum(found, Losses())
    text = f"{total.lost:,} of {total.sent:,} ({total.lost / total.sent:.1%})" if total.lost else "0"
    extras = {"repeated": total.repeated, "reordered": total.reordered}
    return ", ".join([text, *(f"{count:,} {what}" for what, count in extras.items() if count)])


def _note_rows(outcome: Outcome) -> list[list[str]]:
    by_side = [samples(outcome.ours), samples(outcome.other)]
    names = list(dict.fromkeys(name for side in by_side for sample in side for name in sample.notes))
    rows: list[list[str]] = []
    for name in names:
        values = [[sample.notes[name] for sample in side if name in sample.notes] for side in by_side]
        middles = [number(statistics.median(side)) if side else "–" for side in values]
        rows.append(
            [outcome.name, name, *middles, _ratio(outcome, lambda sample, name=name: sample.notes.get(name, 0))]
        )
    return rows


def _failures(outcome: Outcome, other: str) -> list[str]:
    sides = [*(("ours", run) for run in outcome.ours), *((other, run) for run in outcome.other)]
    counts = Counter((name, str(run)) for name, run in sides if isinstance(run, Failed))
    return [f"{outcome.name}, {name}, {count} ×: {failure}" for (name, failure), count in counts.items()]
