"""Tools of the repository. They are not part of what is installed."""
