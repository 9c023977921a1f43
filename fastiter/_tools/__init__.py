"""The tools of the command line, ``doctor`` and ``profile``."""
