"""What is particular to one agent, between its process and the hub, which knows no agent's name."""
