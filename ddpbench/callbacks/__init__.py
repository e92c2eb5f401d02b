"""Callbacks that watch the training of a framework: ``callbacks.lightning`` and ``callbacks.transformers``."""
