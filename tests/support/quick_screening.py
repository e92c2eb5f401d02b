"""``python quick_screening.py diagnose ...``: ddpbench with short windows for cures, and a loader that is soon judged."""

import sys

from ddpbench.bench import launch
from ddpbench.cli import main
from ddpbench.script.ab import follow_up
from ddpbench.script.diagnose import diagnosis, screening

screening.WINDOW_S, screening.MIN_STEPS, screening.FIRST_USE_S = 0.1, 4, 1.0
diagnosis.DEFAULT_LIMIT_S = 6.0
follow_up.LAUNCH_S, follow_up.MIN_LAUNCH_S = 6.0, 3.0
of_ddpbench = launch.torchrun_command
launch.torchrun_command = lambda ranks, arguments: [*of_ddpbench(ranks, [])[:-2], __file__, *arguments]  # its ranks, too
sys.exit(main())
