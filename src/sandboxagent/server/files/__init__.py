"""Use the files of this machine for agents and clients.

The package knows nothing of agents, sessions or envelopes.
"""
