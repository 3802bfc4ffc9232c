"""Reproduction of R. Bamler and S. Mandt, "Extreme Classification via Adversarial Softmax Approximation".

`reproduction` repeats the comparison of the paper's Figure 1 on a data set, `by_classes` for several numbers
of classes, and `theory` computes the signal-to-noise ratios of its section 4.
"""
