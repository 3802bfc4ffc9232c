"""Training of sparse weights: class sums, the generative start, linear weights, and their mixture."""
