"""`python -m sandbox_agent` is the command sandbox-agent."""

from sandbox_agent.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
