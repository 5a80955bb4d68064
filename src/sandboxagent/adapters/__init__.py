"""Connect programs with other protocols: OpenCode's programs, Amp and the mock agent."""
