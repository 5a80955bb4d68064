"""What both ends of the wire know; pure, and imports nothing of ours."""
