"""Real coding agents against our server, and their recorded requests."""
