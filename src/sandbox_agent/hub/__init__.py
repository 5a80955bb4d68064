"""The hub: sessions, connections, turns, pending requests, and every envelope's way between clients and agents."""
