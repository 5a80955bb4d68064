"""Connect many servers to a fleet: the bus, a gateway, and a server as a node."""
