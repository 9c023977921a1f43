"""Declarations of C for Cython, statuses of C as exceptions, locks of bytes of a file."""
