"""Permission rules: what they say, and what an agent asks for. Decides; asks and answers nobody."""
