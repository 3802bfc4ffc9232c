"""Checks of user input: features, labels, weights, seeds, parameters.

Kernels do not check bounds, so nothing reaches them unchecked. Error messages about data and parameters are
worded in this package: what is wrong, where, what was found, what to do.

Nothing is imported here: the command line needs `extremax.validation.constraints` without numpy.
"""
