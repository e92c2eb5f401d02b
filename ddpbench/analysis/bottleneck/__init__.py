"""Bottleneck rules and the verdict: which bottleneck a run hit."""
