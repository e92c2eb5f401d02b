"""InfiniBand as the kernel shows it."""

from __future__ import annotations

from pathlib import Path

from ddpbench.machine.read_text import told

ROOT = Path("/sys/class/infiniband")
ACTIVE = "4: ACTIVE"


def active_devices(root: Path = ROOT) -> list[str]:
    """The InfiniBand devices of this host that have a port in use. Cards that speak Ethernet lie there too, and are none."""
    ports = [port for port in root.glob("*/ports/*") if told(port / "link_layer") == "InfiniBand" and told(port / "state") == ACTIVE]
    return sorted({port.parent.parent.name for port in ports})
