"""Translate what is particular to one agent, so that the hub knows no agent's name."""
