"""Carry envelopes between clients and agents: sessions, connections, turns and pending requests."""
