"""``python -m probed.deep``."""

import probe

if __name__ == "__main__":
    probe.main()
