"""Decide by rules what agents may do.

The package sends nothing: its callers act on its decisions.
"""
