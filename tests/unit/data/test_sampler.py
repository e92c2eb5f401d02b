"""Sample indices per rank, as in torch's DistributedSampler."""

from itertools import islice

import pytest
from torch.utils.data import DistributedSampler

from ddpbench.data.sampler import DistributedBatchSampler


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("samples", "world_size"), [(10, 1), (10, 2), (10, 3), (11, 4), (2, 5)])
def test_indices_match_torchs_distributed_sampler(samples: int, world_size: int, shuffle: bool) -> None:
    for rank in range(world_size):
        theirs: DistributedSampler[int] = DistributedSampler(range(samples), world_size, rank, shuffle, seed=3)  # type: ignore[arg-type]
        ours = DistributedBatchSampler(samples, 4, rank, world_size, 3, shuffle).epoch_indices()
        for epoch, order in enumerate(islice(ours, 3)):
            theirs.set_epoch(epoch)
            assert order.tolist() == list(theirs)


def test_batches_cross_epoch_ends() -> None:
    plan = DistributedBatchSampler(5, 3, 0, 1, 0, shuffle=False)
    assert list(islice(plan, 3)) == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
