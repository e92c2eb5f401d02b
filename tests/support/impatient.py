"""``python impatient.py watch ...``: ddpbench that reports a rank after two seconds without progress."""

import sys

from ddpbench.cli import main
from ddpbench.script.ranks import progress, standstill

standstill.REPORT_AFTER_S, standstill.FIRST_STEP_FACTOR, progress.DESCRIBE_AFTER_S = 2.0, 1.0, 1.0
sys.exit(main())
