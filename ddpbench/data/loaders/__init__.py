"""The loaders, one module each."""
