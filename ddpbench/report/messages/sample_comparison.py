"""Sentences about samples that several workers read."""

from __future__ import annotations

from ddpbench.record.record import Record
from ddpbench.record.script import SampleComparison
from ddpbench.record.text import pluralize

NOT_COMPARED = "not compared with those of other workers: compare some before training"


def comparison_text(comparison: SampleComparison) -> str:
    """``no difference in 300 samples that 3 workers read at once``, or why nothing can be said."""
    workers, samples = pluralize(comparison.workers, "worker"), pluralize(comparison.samples, "sample")
    match comparison.not_compared:
        case "random":
            return f"not compared: {samples} of the dataset differ from one read to the next, by random transforms with their own state"
        case "repetitive":
            return "not compared: one worker alone yields the same samples several times, so that those of two cannot be distinguished"
        case "shuffled":
            return f"not compared: {workers} draw the samples of the stream at random, and nothing shows that they are divided among them"
        case "failed":
            return f"samples of {workers} could not be compared: {comparison.error}"
    if comparison.is_stream:
        if comparison.different:
            return f"{workers} yield the same samples: the stream is not divided among them"
        return f"no sample of {samples} was yielded by both of {workers}"
    others = f"; {comparison.unsteady:,} others differ from one read to the next" if comparison.unsteady else ""
    if comparison.different:
        return f"{comparison.different:,} of {samples} differ if {workers} read them at once{others}"
    return f"no difference in {samples} that {workers} read at once{others}"


def repeated_text(record: Record, workers: int) -> str:
    """What it means that ``workers`` of a script repeat each other's samples."""
    compared = record.script.sample_comparison if record.script else None
    found = f" ({compared.different:,} of {compared.samples:,} were the same)" if compared else ""
    return f"{pluralize(workers, 'worker')} yield the same samples{found}: the stream is not divided among them"
