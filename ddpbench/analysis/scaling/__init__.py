"""How a training scales: its ladder, where the images go that are lost on the way, and the verdict."""
