"""Floor 3: where batches come from. Names and refusals are torch-free; loaders are opened lazily."""
