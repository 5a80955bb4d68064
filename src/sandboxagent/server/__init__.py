"""One machine: HTTP, sessions, the log, agents, permissions, files and processes."""
