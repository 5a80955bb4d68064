"""Read settings from flags, environment variables and config.toml, once at the start.

options.py has the table of options, values.py the syntax of their values, and sources.py the places where they are
read, also for other TOML files. The package knows neither how a command line is parsed nor who uses a setting.
"""

from sandboxagent.core.settings.options import OPTIONS, Option, Settings
from sandboxagent.core.settings.sources import load
from sandboxagent.core.settings.values import is_loopback

__all__ = ["OPTIONS", "Option", "Settings", "is_loopback", "load"]
