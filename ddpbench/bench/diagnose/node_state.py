"""Every node, before anything of the diagnosis runs there."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import DiagnosisContext, DiagnosisExperiment
from ddpbench.machine.node_state import collect_node_state
from ddpbench.record.diagnosis import NodeState


def collect_node_states(context: DiagnosisContext) -> list[NodeState]:
    """One a node, as its first rank finds it while the others wait."""
    world = context.job_context.world
    here = [place for place in world.placements if place.host == world.placement.host]
    own = collect_node_state(here) if world.rank == here[0].rank else None
    return [each for each in world.gather(own) if each]


NODE_STATES = DiagnosisExperiment("node_states", "looking at the machine", collect_node_states, 1.0)
