"""Play an agent for trying things without an account: a program of its own that speaks ACP on stdio.

Run it with `python -m sandboxagent.adapters.mock`; say `help` to it. It needs nothing but the standard library, so that
it starts at once; the tests check every line that it writes against ACP's official types.
"""
