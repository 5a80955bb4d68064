"""Connect gateways and nodes: append-only streams, key-value tables, and requests."""
