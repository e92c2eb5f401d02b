"""NVIDIA DALI: a graph of operators that reads, decodes and augments in threads of its own, on the CPU or on the GPU."""
