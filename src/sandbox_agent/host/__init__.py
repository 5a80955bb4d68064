"""The host: files and terminals of the machine we run on. Knows nothing of agents, sessions or envelopes."""
