"""Floor 2: analysis of records. Pure functions on records, without torch."""
