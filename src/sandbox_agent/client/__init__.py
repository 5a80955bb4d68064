"""The Python SDK: a client of a sandbox-agent server, async and typed.

`sandbox_agent.client.sync` has the same for scripts that do not want to be async.
"""
