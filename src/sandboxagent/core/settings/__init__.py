"""Read settings from flags, environment variables and config.toml, once at the start.

options.py is the table of options, values.py what can be written for one, sources.py where it is read from, also
for other TOML files. Knows nothing of how a command line is parsed, nor of who uses a setting.
"""

from sandboxagent.core.settings.options import OPTIONS, Option, Settings
from sandboxagent.core.settings.sources import load
from sandboxagent.core.settings.values import is_loopback

__all__ = ["OPTIONS", "Option", "Settings", "is_loopback", "load"]
