"""`sandbox-agent doctor`: finds out what does not work, and what to do."""
