"""sandbox-agent: run and control coding agents inside a sandbox, over HTTP."""

__version__ = "0.1.0"
