"""The command line: demo, doctor and profile."""
