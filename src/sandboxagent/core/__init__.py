"""Provide the modules that the server, the client and the command line share."""
