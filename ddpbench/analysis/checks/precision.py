"""Checks of precision: whether the observed one is the requested one."""

from __future__ import annotations

from ddpbench.record.checks import Check
from ddpbench.record.record import Record
from ddpbench.record.registry import PRECISIONS


def not_as_asked(record: Record) -> Check | None:
    """Compares the observed precision, as far as it was observed, with the requested one."""
    seen, asked = record.observed_precision, PRECISIONS.get(record.config.precision)
    if seen is None or asked is None:
        return None
    wrong = [
        f"layers compute in {dtype}" for dtype in (seen.first_layer_dtype, seen.last_layer_dtype) if dtype and dtype != asked.layer_dtype
    ]
    wrong += [f"BatchNorm is {dtype}" for dtype in seen.batch_norm_dtypes if dtype != asked.batch_norm_dtype]
    held = {asked.model_dtype, *seen.batch_norm_dtypes}
    wrong += [f"parameters are {dtype}" for dtype in seen.parameter_dtypes if dtype not in held]
    wrong += [f"gradients are {dtype}" for dtype in seen.gradient_dtypes if dtype not in held]
    if asked.master_weights != bool(seen.master_weight_dtype):
        wrong.append("there are master weights" if seen.master_weight_dtype else "there are no master weights")
    static = asked.static_loss_scale(record.config.static_loss_scale)
    scaled = asked.loss_scaling or static is not None
    if scaled != (seen.loss_scale is not None):
        wrong.append("there is a loss scaler" if seen.loss_scale is not None else "there is no loss scaler")
    elif static is not None:
        scales = (seen.loss_scale, *(trace.numerics.loss_scale for trace in record.traces))
        wrong += [f"the loss scale is {scale:g}, not {static:g}" for scale in scales if scale not in (static, None)]
    if asked.tf32 is not None and (seen.tf32_matmul, seen.tf32_cudnn) != (asked.tf32, asked.tf32):
        wrong.append(f"TF32 is {'on' if seen.tf32_matmul else 'off'} for matmul, {'on' if seen.tf32_cudnn else 'off'} for cuDNN")
    if not wrong:
        return None
    return Check(
        code="not-as-asked",
        severity="blocks",
        sentence=f"asked for {asked.name}, but {', '.join(dict.fromkeys(wrong))}",
        hint="something outside ddpbench sets the precision: the workload itself, or NVIDIA_TF32_OVERRIDE",
    )


def unused_scale(record: Record) -> Check | None:
    """A note, since scripts pass the same flags for every precision: a static loss scale that is not used does no harm."""
    scale, asked = record.config.static_loss_scale, PRECISIONS.get(record.config.precision)
    if scale in (None, 1) or asked is None or asked.static_loss_scale(scale) is not None:  # a scale of 1 changes nothing
        return None
    return Check(
        code="unused-scale",
        severity="informs",
        sentence=f"--static-loss-scale {scale:g} is not used: {asked.name} does not scale the loss",
        numbers={"loss_scale": scale},
    )
