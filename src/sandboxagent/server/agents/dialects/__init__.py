"""Translate the particular forms of single agents, so that the hub knows no agent's name."""
