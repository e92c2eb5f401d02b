"""Floor 2: the ranks of a launch: rendezvous, liveness and collectives."""
