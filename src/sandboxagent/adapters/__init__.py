"""Programs and APIs of others: OpenCode's API, Amp and the mock agent."""
