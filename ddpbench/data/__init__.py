"""Floor 2: where batches come from. Names and refusals are torch-free; loaders are opened lazily."""
