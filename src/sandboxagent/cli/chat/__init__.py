"""Converse with an agent in a terminal: `sandbox-agent run` and `sandbox-agent attach`.

The agent's actions become blocks (`render.py`), and blocks become text on a stream (`screen.py`). Typed text comes
through `input.py`. Only these two commands import the package.
"""

from sandboxagent import ClientError

FAILURES = (ClientError, ValueError)
"""Exceptions of SDK calls. A ValueError comes from an answer that does not follow ACP."""
