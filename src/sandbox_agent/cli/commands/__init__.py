"""One module for each command, or group of commands: its grammar, and what it does."""
