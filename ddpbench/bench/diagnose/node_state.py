"""Every node, before anything of the diagnosis runs there."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import Experiment, Scene
from ddpbench.machine.node_state import surroundings
from ddpbench.record.diagnosis import Surroundings


def measure_surroundings(scene: Scene) -> list[Surroundings]:
    """One a node, as its first rank finds it while the others wait."""
    world = scene.ground.world
    here = [place for place in world.places if place.host == world.place.host]
    own = surroundings(here) if world.rank == here[0].rank else None
    return [each for each in world.gather(own) if each]


SURROUNDINGS = Experiment("surroundings", "looking at the machine", measure_surroundings, 1.0)
