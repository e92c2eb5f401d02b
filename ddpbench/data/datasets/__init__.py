"""Datasets in files and in memory, and their samples."""
