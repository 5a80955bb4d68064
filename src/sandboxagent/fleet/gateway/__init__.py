"""Serve the sessions of many nodes at one endpoint."""
