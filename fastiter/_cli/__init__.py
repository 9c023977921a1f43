"""Commands of ``python -m fastiter``. They may import every other package."""
