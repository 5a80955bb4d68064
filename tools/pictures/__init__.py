"""Draw pictures of the docs into docs/pictures: `python -m tools.pictures`."""
