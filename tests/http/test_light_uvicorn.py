"""uvicorn without its command line: the server starts without it, and other code still gets it."""

import subprocess
import sys

_PROGRAM = """
import sys
import sandbox_agent.server
assert "click" not in sys.modules, "the command line was imported"
import uvicorn
from uvicorn import run
assert uvicorn.run is run
assert issubclass(sandbox_agent.listening.HttpServer, uvicorn.Server)
assert not hasattr(uvicorn, "unknown")
"""


def test_the_server_imports_no_command_line_and_other_code_still_gets_it() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=120)
