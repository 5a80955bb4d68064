"""Adapt Amp to ACP: a program of its own on stdio, which runs Amp's command line for each turn.

Run it with `python -m sandboxagent.adapters.amp`; `AMP_CLI` names Amp's program, else `amp` on the PATH is taken. A
session is a thread of Amp's, under its id. Amp asks this program before it uses a tool (`permissions.py`), and this
program asks its client. It needs nothing but the standard library, so that it starts at once.
"""
