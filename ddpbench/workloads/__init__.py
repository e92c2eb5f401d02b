"""Floor 3: what is trained.

Names and help are in a torch-free registry; models are built lazily.
"""
