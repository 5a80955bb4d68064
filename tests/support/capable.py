"""A server with other capabilities than usual, as a program: `TEST_CAPABILITIES` names them, as `module:Class`."""

import os
import sys
from importlib import import_module

from sandboxagent.cli.commands.server import server_command
from sandboxagent.cli.flags import settings_of
from sandboxagent.server.capability import Capability
from sandboxagent.server.main import run


def _load(name: str) -> type[Capability]:
    module, _, kind = name.partition(":")
    found: type[Capability] = getattr(import_module(module), kind)
    return found


if __name__ == "__main__":
    capabilities = [_load(name) for name in os.environ["TEST_CAPABILITIES"].split(",")]
    arguments = server_command().parser.parse(sys.argv[2:])
    sys.exit(run(settings_of(arguments, os.environ), capabilities))
