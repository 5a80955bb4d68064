"""The Python SDK: a client of a sandbox-agent server, async and typed."""
