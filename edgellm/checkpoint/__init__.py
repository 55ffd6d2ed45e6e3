"""Checkpoints: ``config.json`` → `ModelSpec`, checked lazy weights, hub download, and random-weight ones for tests."""
