"""How training scales: throughput per world size, the losses by name, and the verdict."""
