"""``python -m fastiter profile``: measures a dataset, and finds settings for it."""
