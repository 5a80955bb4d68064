"""Processes: whose they are, what they see, and that they die whole. Knows nothing of agents."""
