"""A scaling job on two hosts with a slow link, simulated by network namespaces (root, iproute2).

    python results/scaling/two_hosts.py 100 mnist-cnn -b 32 --time-limit 100

The first argument is the bandwidth of the link in Mbit/s each way; the others are passed to ``ddpbench scale``. Ranks train on CPU.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import two_hosts


def main(megabits: int, words: list[str]) -> int:
    if why := two_hosts.why_not():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as folder, two_hosts.cable(megabits):
        names = two_hosts.names_in(Path(folder))
        commands = [two_hosts.torchrun(host, names, ["scale", *words, "--device", "cpu"]) for host in two_hosts.HOSTS]
        return max(started.wait() for started in [subprocess.Popen(command) for command in commands])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
