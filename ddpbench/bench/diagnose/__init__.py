"""What holds a training's data pipeline back: trainings that take turns, experiments beside them, one record."""
