"""Define the protocol that the server and its clients share.

This package imports no other package of the project.
"""
