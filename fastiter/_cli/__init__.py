"""The command line: demo, doctor and profile. It may import every other package."""
