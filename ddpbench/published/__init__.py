"""Floor 6: published experiments repeated and compared; CPU against GPU crossovers."""
