"""Decide by rules what agents may do.

Sends nothing: others act on what it decides.
"""
