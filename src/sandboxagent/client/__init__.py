"""Provide the Python SDK: a client of a sandbox-agent server, async and typed.

`sandboxagent` itself exports its public names.
"""
