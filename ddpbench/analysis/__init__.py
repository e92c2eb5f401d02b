"""Floor 1: what a record says. Pure functions on records, without torch."""
