"""A server as a member of a fleet: it publishes its log, and shows that it is there."""
