"""Search: files by name, lines by text."""
