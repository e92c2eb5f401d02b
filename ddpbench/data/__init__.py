"""Floor 3: where batches come from.

Names and checks are torch-free; loaders are imported lazily.
"""
