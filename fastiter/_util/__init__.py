"""Argument checks, failures, warnings, CPUs, descriptors, array subtypes. Imports only `_clib`."""
