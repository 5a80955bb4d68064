"""Run the command `sandbox-agent` as `python -m sandbox_agent`."""

from sandbox_agent.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
