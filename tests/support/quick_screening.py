"""``python quick_screening.py diagnose ...``: ddpbench with short windows for cures, and a loader that is soon judged."""

import sys

from ddpbench.cli import main
from ddpbench.script.diagnose import diagnosis, screening

screening.WINDOW_S, screening.MIN_STEPS, screening.FIRST_USE_S = 0.1, 4, 1.0
diagnosis.DEFAULT_LIMIT_S = 6.0
sys.exit(main())
