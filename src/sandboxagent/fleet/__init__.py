"""Many machines: the bus, a gateway, and a server as a node."""
