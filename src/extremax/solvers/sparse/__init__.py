"""Training of sparse weights: class sums, the generative start, its correction, and their mixture."""
