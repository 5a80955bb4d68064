"""Build the environment of an agent's process from the server's.

It has nothing of the server's own settings, and no secret of the server.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from secrets import token_urlsafe

from sandboxagent.core.settings.options import PREFIX
from sandboxagent.server.agents.manifest import Agent

# Variables of the server's environment that every agent may see.
_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "TMPDIR", "TZ"),
    *("LANG", "LANGUAGE", "LC_*", "XDG_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)


def child_environment(
    agent: Agent, environ: Mapping[str, str], extra: Mapping[str, str], secrets: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment of an agent's process: allowed variables of the server, the agent's `env`, then `extra`.

    Later values win. The server's own settings are left out, and so is every value that is one of `secrets`.
    """
    seen = allowed_environment(environ, (*agent.credentials, *agent.variables))
    made = {name: token_urlsafe(24) for name in agent.random_env}
    return {name: value for name, value in {**made, **seen, **agent.env, **extra}.items() if value not in secrets}


def allowed_environment(environ: Mapping[str, str], more: Sequence[str]) -> dict[str, str]:
    """Return the variables that any child may see of the server's environment, and those that match `more`."""
    patterns = (*_ALLOWED, *more)
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(PREFIX) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
