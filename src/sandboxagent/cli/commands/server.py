"""Run `sandbox-agent server`, whose flags are all existing options, and `sandbox-agent gateway`."""

import gc
import os

from sandboxagent.cli.flags import add_flags, settings_of
from sandboxagent.cli.parser import Command, ParsedArguments, Parser
from sandboxagent.core.settings import OPTIONS

EPILOG = """\
Each flag can also be an environment variable (--max-body: SANDBOX_AGENT_MAX_BODY)
or a key in config.toml of the configuration directory (max_body). A flag wins over
the environment, the environment over the file.

examples:
  sandbox-agent server --no-token
      for this machine only, to try things out
  sandbox-agent server --host 0.0.0.0 --token-file token.txt --allow-host box.example
      for clients on other machines that know it as box.example
"""

GATEWAY_FLAGS = frozenset(
    {
        *("host", "port", "token", "token_file", "no_token", "insecure", "public_health", "allow_host", "cors_origin"),
        *("frame_origin", "config_dir", "data_dir", "join", "join_proxy", "creds", "replicas", "flows"),
        *("default_agent", "node_rate", "node_sessions", "node_views", "session_view", "node_line", "require_pins"),
        *("log_max_bytes", "log_max_age", "replay_bytes", "session_streams", "connection_ttl", "max_body"),
        *("anonymous_sockets", "head_timeout", "body_timeout", "idle_timeout", "heartbeat", "peer_timeout"),
        *("pong_timeout", "stream_buffer", "stream_requests", "stall_timeout", "log_level", "log_format", "quiet"),
    }
)
"""Names of the options that apply to a gateway."""
GATEWAY_EPILOG = """\
examples:
  sandbox-agent gateway --join nats://nats.example:4222 --creds gateway.creds --token-file token.txt
      one address for the sessions of every server that has joined the fleet
  sandbox-agent server --join nats://nats.example:4222 --creds node-1.creds --node node-1
      a server that joins it
"""


def server_command() -> Command:
    """Make the command `server`."""
    parser = Parser("sandbox-agent server", "Run the server.", EPILOG)
    add_flags(parser, {option.name for option in OPTIONS})
    return Command(parser, serve)


def serve(arguments: ParsedArguments) -> int:
    """Run the server until it is stopped. Return the exit code."""
    settings = settings_of(arguments, os.environ)
    # Imported objects stay. Collecting garbage is useless until the server runs and sets its own thresholds.
    gc.set_threshold(1_000_000)
    from sandboxagent.server.main import run

    return run(settings)


def gateway_command() -> Command:
    """Make the command `gateway`."""
    parser = Parser("sandbox-agent gateway", "Serve the sessions of a fleet of servers at one address.", GATEWAY_EPILOG)
    add_flags(parser, GATEWAY_FLAGS)
    return Command(parser, _serve_gateway)


def _serve_gateway(arguments: ParsedArguments) -> int:
    settings = settings_of(arguments, os.environ, GATEWAY_FLAGS)
    from sandboxagent.fleet.gateway.main import run

    return run(settings)
