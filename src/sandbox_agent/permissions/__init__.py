"""Permission rules: what they say, and what an agent asks for. Only decides; sends nothing."""
