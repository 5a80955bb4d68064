"""Completing a command line in a shell."""
