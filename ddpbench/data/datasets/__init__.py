"""Datasets in files and in memory, and which samples they hold."""
