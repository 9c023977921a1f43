"""``python -m fastiter doctor``: what this machine offers."""
