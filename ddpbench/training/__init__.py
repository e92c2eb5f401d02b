"""Floor 4: the timed training loop and its parts."""
