"""Floor 4: the one timed loop, and what it is made of."""
