"""``python impatient.py watch ...``: ddpbench with waits of seconds, for ranks and scripts that make no progress or do not end."""

import sys

from ddpbench.cli import main
from ddpbench.script import early_end
from ddpbench.script.diagnose import deadline, trial_loader
from ddpbench.script.ranks import gather, progress, standstill

standstill.REPORT_AFTER_S, standstill.FIRST_STEP_FACTOR, progress.DESCRIBE_AFTER_S = 2.0, 1.0, 1.0
deadline.MIN_OVERTIME_S = early_end.LEAVE_AFTER_S = 5.0
trial_loader.BATCH_TIMEOUT_S = 3.0
gather.EXCHANGE_S = 0.5
sys.exit(main())
