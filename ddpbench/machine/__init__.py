"""Floor 1: the machine a rank stands on."""
