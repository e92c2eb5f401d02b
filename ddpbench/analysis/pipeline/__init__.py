"""The data pipeline as a model: what each part can give, what limits it, and what would help."""
