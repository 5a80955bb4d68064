"""Use the files and terminals of this machine for agents and clients.

Knows nothing of agents, sessions or envelopes.
"""
