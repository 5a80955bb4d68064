"""Know the agents, and run their processes."""
