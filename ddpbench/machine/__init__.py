"""Floor 1: the machine a rank stands on, and the other ranks."""
