"""Adapt Amp to ACP: a program of its own on stdio, which runs Amp's command line for each turn.

Run it with `python -m sandboxagent.adapters.amp`. `AMP_CLI` names Amp's program; without it, `amp` on the PATH is used.
A session is a thread of Amp's, with the thread's id. Amp asks this program before it uses a tool (`permissions.py`),
and this program asks its client. It needs only the standard library, so that it starts at once.
"""
