"""Options of `ExtremeSoftmax` and `ShardedExtremeSoftmax` whose states differ."""

KINDS = {
    "dense": {"gradients": "dense"},
    "sparse": {"gradients": "sparse"},
    "whitened": {"gradients": "fused"},
    "plain": {"gradients": "fused", "whiten": False},
}
