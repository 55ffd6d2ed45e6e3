"""From float32 matrices to NVFP4: rounding to nearest, and a search of the block scales."""
