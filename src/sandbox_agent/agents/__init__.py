"""Agents: what we know of them, and the processes they run as."""
