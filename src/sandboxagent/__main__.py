"""Run the command `sandbox-agent` as `python -m sandboxagent`."""

from sandboxagent.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
