"""Serve the files of this machine over HTTP and JSON-RPC."""
