"""Start processes, track which child each one belongs to, and end whole trees.

The package knows nothing of agents.
"""
