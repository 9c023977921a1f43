"""Helpers that several packages share: argument checks, file descriptors, warnings, failures."""
