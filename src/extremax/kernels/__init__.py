"""Compiled inner loops: typed arrays in, arrays out. Callers allocate and check; kernels fill and never
validate.
"""
