"""Converse with an agent in a terminal: `sandbox-agent run` and `sandbox-agent attach`.

What an agent does becomes blocks (`render.py`), blocks become text on a stream (`screen.py`). What a person types
comes through `input.py`. Imported when one of the two commands runs, and by nothing else.
"""

from sandboxagent.client import ClientError

FAILURES = (ClientError, ValueError)
"""What calls of the SDK may raise: a ValueError comes from answers that are not what ACP says."""
