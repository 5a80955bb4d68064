"""Getting agents onto this machine: the ACP registry, archives, packages, and what is installed."""
