"""Write docs/reference/configuration.md, every option and every key of agents.toml, from the tables."""

from collections.abc import Iterable
from itertools import groupby

from sandboxagent.core.settings import OPTIONS
from sandboxagent.server.agents.manifest import KEYS
from tools.reference.markdown import row

_TOP = """\
<!-- Written by `./dev docs`; change the tables in the code, not this page. -->

# Configuration

`sandbox-agent server` takes its settings from three places. The first that has a setting wins:

1. a flag, such as `--max-body 64MiB`;
2. an environment variable, such as `SANDBOX_AGENT_MAX_BODY=64MiB`; an empty one counts as not set;
3. a key in `config.toml` of the configuration directory, such as `max_body = "64MiB"`.

The configuration directory is `~/.config/sandbox-agent` on Linux, the data directory `~/.local/share/sandbox-agent`; on
macOS both are `~/Library/Application Support/sandbox-agent`. `sandbox-agent server --help` shows the same tables. With
an unknown flag or key, the server does not start. An unknown variable that begins with `SANDBOX_AGENT_` causes a
warning.

## Values

| kind | how it is written |
|---|---|
| TIME | seconds, or a number with `ms`, `s`, `m`, `h` or `d`: `120`, `500ms`, `30m` |
| SIZE | bytes, or a number with a unit: `k`, `KiB`, `m`, `MiB`, … count in 1024s, `KB`, `MB`, … in 1000s |
| PATH | `~` works; a relative path starts in the working directory, in `config.toml` in that file's directory |
| switch | a flag without a value; elsewhere `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0` |
| repeated | the flag several times; in the environment separated by commas; in `config.toml` a list |

## Options
"""

_RULES = """
## The token

Clients send it as `Authorization: Bearer <token>`. Without `--token` and `--token-file` one is generated at the first
start and kept in the data directory. It consists of printable ASCII characters without spaces; around the content of a
token file, spaces and line ends are ignored. `--no-token` together with a token is an error. `--no-token` on an address
that other machines can reach is an error, too, unless you also give `--insecure`.

## agents.toml

Your own agents, in `agents.toml` of the configuration directory or the file that `--agents-file` names:

```toml
[agents.echo]
command = ["python3", "echo_agent.py"]   # any program that speaks ACP on stdio
env = { GREETING = "hello" }             # added to the allow-list
title = "Echo"

[agents.other]
registry = "some-agent"                  # installed from the ACP registry, under this slug
```

An id is made of `a-z`, `0-9`, `.`, `_` and `-`. With the id of an agent that sandbox-agent knows, such as
`[agents.claude]`, the table changes that agent. Only such a table may leave out both `command` and `registry`.

"""

_END = """
An agent's process does not inherit the server's environment. It sees `PATH`, `HOME`, the user, the shell, locale,
time zone, terminal, temporary and XDG directories, proxies and certificates, then its `credentials` and `variables`,
then its `env`. It never sees the server's token, nor the server's own `SANDBOX_AGENT_` variables.

## Exit codes

| code | when |
|---|---|
| 0 | after a clean stop |
| 2 | a mistake in a flag, a variable or a file; the message names it |
| 3 | the port is taken |
"""


def render_configuration() -> str:
    """Return the whole page."""
    return _TOP + "".join(_options()) + _RULES + "".join(_keys()) + _END


def _options() -> Iterable[str]:
    for group, options in groupby(OPTIONS, key=lambda each: each.group):
        yield f"\n### {group}\n\n"
        yield row("flag", "environment variable", "key", "default", "what it does")
        yield "|---|---|---|---|---|\n"
        for each in options:
            flag = f"{each.flag} {each.kind.metavar}".strip()
            # config.toml cannot name its own directory.
            key = "" if each.name == "config_dir" else f"`{each.name}`"
            text = f"{each.text} May be repeated." if each.kind.many else each.text
            yield row(f"`{flag}`", f"`{each.variable}`", key, each.default or "none", text)


def _keys() -> Iterable[str]:
    yield row("key", "value", "what it does")
    yield "|---|---|---|\n"
    for key, (expected, text) in KEYS.items():
        yield row(f"`{key}`", expected, text)
