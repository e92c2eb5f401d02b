"""InfiniBand as the kernel shows it."""

from __future__ import annotations

from pathlib import Path

from ddpbench.machine.read_text import read_text

SYSFS_INFINIBAND = Path("/sys/class/infiniband")
ACTIVE_STATE = "4: ACTIVE"


def active_infiniband_devices(root: Path = SYSFS_INFINIBAND) -> list[str]:
    """The InfiniBand devices of this host that have a port in use. Cards that speak Ethernet lie there too, and are none."""
    ports = [
        port
        for port in root.glob("*/ports/*")
        if read_text(port / "link_layer") == "InfiniBand" and read_text(port / "state") == ACTIVE_STATE
    ]
    return sorted({port.parent.parent.name for port in ports})
