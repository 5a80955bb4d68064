"""Make a server a node of a fleet: publish its log, and show that it is alive."""
