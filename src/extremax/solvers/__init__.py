"""Training: objectives, trainers, the loop over epochs.

`objectives` is the registry; `row_trainer` draws negatives for each row (the paper's method), `batch_trainer`
shares classes in a minibatch; `loop` runs the epochs of either."""
