"""Name what goes over the wire once, for server and client: methods, headers and types."""
