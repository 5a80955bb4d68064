"""Archives: what may be in one, and how one is read. Knows neither agents nor the host's file service."""
