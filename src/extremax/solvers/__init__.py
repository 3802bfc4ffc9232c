"""Solvers: how the weights of an `ExtremeClassifier` are trained, each with parameters of its own.

`registry` has the solvers; `negative_sampling`, `minibatch`, `candidate` and `sparse` train; `loop` runs the
epochs of any."""

from extremax.solvers.registry import (
    NCE,
    AugmentReduce,
    CandidateSoftmax,
    MinibatchSoftmax,
    NCEFromZero,
    NegativeSampling,
    OneVsEach,
    SampledSoftmax,
    Solver,
    SparseSoftmax,
    register_solver,
)

__all__ = [
    "NCE",
    "AugmentReduce",
    "CandidateSoftmax",
    "MinibatchSoftmax",
    "NCEFromZero",
    "NegativeSampling",
    "OneVsEach",
    "SampledSoftmax",
    "Solver",
    "SparseSoftmax",
    "register_solver",
]
