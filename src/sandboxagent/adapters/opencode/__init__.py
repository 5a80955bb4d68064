"""Serve OpenCode's API over the hub, so that OpenCode's own programs can use any agent."""
