"""Run the server of one machine: HTTP, sessions, the log, agents, permissions, files and processes."""
