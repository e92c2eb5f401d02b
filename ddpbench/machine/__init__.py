"""Floor 1: the machine on which a rank runs."""
