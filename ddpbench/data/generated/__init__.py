"""Generated datasets that stand in for published ones."""
