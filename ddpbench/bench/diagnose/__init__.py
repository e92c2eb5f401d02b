"""The diagnose experiment: what limits a training's data pipeline, from control runs and measurements in one record."""
