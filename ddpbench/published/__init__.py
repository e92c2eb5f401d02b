"""Floor 6: the published experiments that ddpbench grew out of, run again and compared; and the crossover of two devices."""
