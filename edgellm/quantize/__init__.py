"""NVFP4 checkpoints from plain ones, and how well a bundle predicts text."""
