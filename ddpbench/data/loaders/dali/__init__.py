"""NVIDIA DALI: operator graphs that read, decode and augment in DALI threads, on the CPU or GPU."""
