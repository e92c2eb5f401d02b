"""Python imports this before a script: one that runs without ddpbench must not hang in a fork, just as a watched one does not."""

from ddpbench.machine.forks import pause_before_forks

pause_before_forks()
