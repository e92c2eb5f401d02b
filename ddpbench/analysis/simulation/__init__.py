"""A data pipeline and the training that it feeds, step by step: what a loader, cores and devices with these times would give."""
