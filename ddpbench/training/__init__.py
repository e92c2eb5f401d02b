"""Floor 2: the one timed loop, and what it is made of."""
