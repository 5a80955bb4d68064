"""`sandbox-agent fleet …`: setting up a fleet, and trying one out."""
