"""Read settings from flags, environment variables and config.toml, once at the start.

options.py is the table of options, values.py what can be written for one, sources.py where it is read from, also
for other TOML files. Knows nothing of how a command line is parsed, nor of who uses a setting.
"""

from sandbox_agent.settings.options import OPTIONS, Option, Settings
from sandbox_agent.settings.sources import load
from sandbox_agent.settings.values import is_loopback

__all__ = ["OPTIONS", "Option", "Settings", "is_loopback", "load"]
