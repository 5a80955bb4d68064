"""The mock agent: a program of its own that speaks ACP on stdio, for trying things without an account.

Run it with `python -m sandbox_agent.agents.mock`; say `help` to it. It uses the upstream SDK and nothing else of ours.
"""
