"""Move files and trees in and out, whole or not at all."""
