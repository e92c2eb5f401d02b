"""Follows a script from batch to update: the hooks, the steps that they time, and their rounds."""
