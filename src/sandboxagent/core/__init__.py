"""Provide what every part of the server, of the client and of the command line may use."""
