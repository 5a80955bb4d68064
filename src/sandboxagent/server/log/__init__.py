"""Keep every envelope in order, in memory and on disk."""
