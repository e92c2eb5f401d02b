"""Floor 2: the ranks of a launch: which they are, whether they live, and how they reduce."""
