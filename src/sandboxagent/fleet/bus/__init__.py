"""Connect gateways and nodes: streams that are appended to, tables of keys, and calls."""
