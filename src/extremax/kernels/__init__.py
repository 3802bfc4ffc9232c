"""Compiled inner loops, the only modules that import numba.

Typed arrays go in and arrays come out.  Callers allocate and check; kernels fill and do not validate.
"""
