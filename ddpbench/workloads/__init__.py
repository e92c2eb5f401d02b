"""Floor 3: what is trained. Names and help stand in a torch-free catalogue; models are built lazily."""
