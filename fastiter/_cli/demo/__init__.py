"""The demonstration program and its data; ``python -m fastiter demo`` runs it."""
