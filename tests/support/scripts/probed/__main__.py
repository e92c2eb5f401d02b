"""``python -m probed``."""

import probe

probe.main()
