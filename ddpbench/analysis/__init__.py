"""Floor 2: what a record says. Pure functions on records, without torch."""
