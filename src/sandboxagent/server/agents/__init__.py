"""Find, install, start and stop agents."""
