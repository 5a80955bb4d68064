"""Pictures of the docs that a program can draw: `python -m tools.pictures` writes them to docs/pictures."""
