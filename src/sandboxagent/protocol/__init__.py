"""Define what both ends of the wire know.

Pure: it imports nothing of ours.
"""
