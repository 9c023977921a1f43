"""Helpers of several packages: argument checks, descriptors, failures. Imports only `_clib`."""
