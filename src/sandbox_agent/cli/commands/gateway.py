"""`sandbox-agent gateway`: one endpoint for the sessions of a fleet."""

import os

from sandbox_agent.cli.flags import add_flags, settings_of
from sandbox_agent.cli.grammar import Arguments, Command, Parser

FLAGS = frozenset(
    {
        *("host", "port", "token", "token_file", "no_token", "insecure", "public_health", "allow_host", "cors_origin"),
        *("frame_origin", "config_dir", "data_dir", "join", "creds", "replicas", "flows", "default_agent"),
        *("log_max_bytes", "log_max_age", "replay_bytes", "session_streams", "connection_ttl", "max_body"),
        *("anonymous_sockets", "head_timeout", "body_timeout", "idle_timeout", "heartbeat", "peer_timeout"),
        *("pong_timeout", "stream_buffer", "stall_timeout", "log_level", "log_format", "quiet"),
    }
)
"""The options that count for a gateway."""

EPILOG = """\
examples:
  sandbox-agent gateway --join nats://nats.example:4222 --creds gateway.creds --token-file token.txt
      one address for the sessions of every server that has joined the fleet
  sandbox-agent server --join nats://nats.example:4222 --creds node-1.creds --node node-1
      a server that joins it
"""


def command() -> Command:
    """The command, with its flags."""
    parser = Parser("sandbox-agent gateway", "Serve the sessions of a fleet of servers at one address.", EPILOG)
    add_flags(parser, FLAGS)
    return Command(parser, serve)


def serve(arguments: Arguments) -> int:
    """Run the gateway until it is stopped; the result is the exit code."""
    settings = settings_of(arguments, os.environ, FLAGS)
    from sandbox_agent.gateway.run import run

    return run(settings)
