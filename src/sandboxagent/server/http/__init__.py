"""Serve HTTP: routes, checks, streams, and errors as problem documents.

The hub makes all decisions.
"""
