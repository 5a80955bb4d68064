"""A gateway: one endpoint for the sessions of many nodes."""
