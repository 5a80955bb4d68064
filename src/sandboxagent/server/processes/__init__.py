"""Start processes, know whose they are, and end them whole.

Knows nothing of agents.
"""
