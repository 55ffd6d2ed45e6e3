"""`edgellm bench`: speed, always as ratios measured in one run (against memory bandwidth, chain against tree)."""
