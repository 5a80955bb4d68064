"""Write the pages of docs/reference from the code; `./dev docs` runs it."""

from tools.reference.agents_page import render_agents
from tools.reference.commands_page import render_commands
from tools.reference.configuration_page import render_configuration
from tools.reference.http_page import render_http
from tools.reference.methods_page import render_methods
from tools.reference.python_page import render_python


def pages() -> dict[str, str]:
    """Return every page by the name of its file."""
    return {
        "configuration.md": render_configuration(),
        "cli.md": render_commands(),
        "agents.md": render_agents(),
        "http.md": render_http(),
        "methods.md": render_methods(),
        "python.md": render_python(),
    }
