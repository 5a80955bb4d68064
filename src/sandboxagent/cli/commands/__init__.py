"""Define one module for each command or group of commands: its arguments, and its work."""
