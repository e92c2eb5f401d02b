"""Simulation of a data pipeline and its training: the result of given loader, core and device times."""
