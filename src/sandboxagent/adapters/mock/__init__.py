"""Simulate an agent, so that you can try the server without an account.

The mock agent is a program of its own that speaks ACP on stdio. Run it with `python -m sandboxagent.adapters.mock`, and
send it the prompt `help`. It needs only the standard library, so that it starts at once. The tests check every line
that it writes against ACP's official types.
"""
