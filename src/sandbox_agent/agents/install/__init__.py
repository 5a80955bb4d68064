"""Getting agents: where they come from, how they are put in place, and what is remembered of it."""
