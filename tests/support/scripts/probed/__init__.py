"""A package with a module to run."""
