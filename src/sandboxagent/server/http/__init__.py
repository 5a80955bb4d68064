"""Serve HTTP: routes, checks, streams, and errors as problem documents.

Thin; what happens is in the hub.
"""
