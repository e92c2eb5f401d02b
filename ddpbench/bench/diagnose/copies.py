"""How fast batches cross to the devices, from page-locked memory and from any."""

from __future__ import annotations

from ddpbench.bench.diagnose.scene import DiagnosisContext, DiagnosisExperiment
from ddpbench.data.registry import find_loader
from ddpbench.distributed.h2d_bandwidth import measure_h2d_bandwidth
from ddpbench.record.diagnosis import H2DBandwidth
from ddpbench.record.errors import ConfigFailed


def measure_batch_copies(context: DiagnosisContext) -> H2DBandwidth | None:
    """All ranks at once, with as many bytes as a batch of the loader has."""
    if not context.batch_bytes:
        raise ConfigFailed("there was no time to take a batch, whose size it would be")
    return measure_h2d_bandwidth(context.job_context.world, context.batch_bytes, context.config.batch_size)


def _why_no_copies(context: DiagnosisContext) -> str:
    if not context.job_context.world.device.is_cuda:
        return "ranks on processors copy no batches"
    return f"the batches of {context.config.loader} are made on the device" if find_loader(context.config.loader).on_device else ""


H2D_COPIES = DiagnosisExperiment("h2d_bandwidth", "measuring copies to the device", measure_batch_copies, 2.0, skip_reason=_why_no_copies)
