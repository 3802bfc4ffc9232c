"""Noise distributions: normalised, sampled as they say, reproducible draw by draw."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from extremax.kernels.alias import build_alias
from extremax.storage.state import State, register, restore
from extremax.tree import LabelTree
from extremax.tree.noise import (
    EditedNoise,
    FrequencyNoise,
    MixtureNoise,
    Noise,
    TreeNoise,
    UniformNoise,
    as_noise,
    mean_log_prob,
)

N_CLASSES = 11  # not a power of two: the tree has padding


@functools.cache
def make_tree(n_classes=N_CLASSES, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=300).astype(np.int32)
    Z = (rng.standard_normal((n_classes, 3))[y] + 0.5 * rng.standard_normal((300, 3))).astype(np.float32)
    return LabelTree.fit(Z, y, n_classes=n_classes)


def features(n, seed=1):
    return np.random.default_rng(seed).standard_normal((n, 3)).astype(np.float32)


COUNTS = [5, 0, 1, 100, 3, 0, 7, 7, 2, 40, 1]


def make(kind):
    match kind:
        case "uniform":
            return UniformNoise(N_CLASSES)
        case "frequency":
            return FrequencyNoise(COUNTS)
        case "frequency_0.75":
            return FrequencyNoise(COUNTS, exponent=0.75)
        case "tree":
            return TreeNoise(make_tree())
        case "mixture":
            return MixtureNoise(TreeNoise(make_tree()), FrequencyNoise(COUNTS), weight=0.7)
        case "nested":
            inner = MixtureNoise(FrequencyNoise(COUNTS), TreeNoise(make_tree()), weight=0.5)
            return MixtureNoise(inner, UniformNoise(N_CLASSES), weight=0.6)


KINDS = ["uniform", "frequency", "frequency_0.75", "tree", "mixture", "nested"]


# -- probabilities


@pytest.mark.identity
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_sum_to_one_identity(kind):
    noise = make(kind)
    log_prob = noise.log_prob_all(features(9))
    assert log_prob.shape == (9, N_CLASSES)
    assert log_prob.dtype == np.float32
    # float32 logarithms of 11 classes: a few 1e-7 each.
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=2e-6)


@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_matches_table(kind):
    noise, Z = make(kind), features(6)
    table = noise.log_prob_all(Z)
    labels = np.random.default_rng(2).integers(N_CLASSES, size=(6, 4)).astype(np.int32)
    # The tree sums the same terms in two orders; all else is exact.
    np.testing.assert_allclose(
        noise.log_prob(Z, labels), np.take_along_axis(table, labels, axis=1), atol=5e-6
    )
    one = noise.log_prob(Z, labels[:, 0])
    assert one.shape == (6,)
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, noise.log_prob(Z, labels)[:, 0])


@pytest.mark.invariance
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_out_is_filled_and_nothing_else_invariant(kind):
    noise, Z = make(kind), features(5)
    expected = noise.log_prob_all(Z)
    out = np.full((5, N_CLASSES), np.nan, np.float32)
    assert noise.log_prob_all(Z, out=out) is out
    np.testing.assert_array_equal(out, expected)
    out[...] = 7.0  # the caller's to change: the noise keeps no reference to it
    np.testing.assert_array_equal(noise.log_prob_all(Z), expected)


@pytest.mark.identity
@pytest.mark.small
def test_uniform_log_prob_identity():
    # Not zero, as an unnormalised "uniform" would have it: the penalty of Eq. 6 acts on the debiased score.
    np.testing.assert_allclose(UniformNoise(8).log_prob_all(features(2)), -np.log(8.0), rtol=1e-7)


@pytest.mark.small
def test_frequency_exponent_without_bounds():
    noise = FrequencyNoise([1, 1000, 7], exponent=1e6)
    assert np.isfinite(noise.log_prob_).all()
    assert noise.log_prob_[1] == 0.0


@pytest.mark.reference
@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.75, 1.0, 2.0])
def test_frequency_exponent_matches_reference(exponent):
    counts = np.array([1.0, 3.0, 0.0, 12.5])
    expected = np.array([1.0, 3.0, 0.5, 12.5]) ** exponent  # a class without rows counts as half a row
    noise = FrequencyNoise(counts, exponent=exponent)
    np.testing.assert_allclose(
        noise.log_prob_all(features(1))[0], np.log(expected / expected.sum()), atol=1e-6
    )
    np.testing.assert_array_equal(noise.counts, counts)
    assert noise.exponent == exponent


@pytest.mark.small
def test_empty_class_is_rare_whatever_the_scale_of_the_weights():
    for scale in (1e-6, 1.0, 1e6):
        prob = np.exp(FrequencyNoise(scale * np.array([3.0, 0.0, 1.0])).log_prob_)
        assert prob[1] <= 0.51 * prob[2]
        assert prob[0] == pytest.approx(3.0 * prob[2], rel=1e-5)  # float32 logarithms
    np.testing.assert_allclose(FrequencyNoise([0, 0]).log_prob_, np.log(0.5))  # nothing is known: uniform


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("weight", [0.001, 0.3, 0.999])
def test_mixture_matches_reference(weight):
    first, second, Z = make("tree"), make("frequency"), features(5)
    expected = weight * np.exp(first.log_prob_all(Z).astype(np.float64))
    expected += (1.0 - weight) * np.exp(second.log_prob_all(Z).astype(np.float64))
    np.testing.assert_allclose(
        MixtureNoise(first, second, weight=weight).log_prob_all(Z), np.log(expected), atol=3e-6
    )


@pytest.mark.identity
@pytest.mark.small
def test_mixture_floor_under_a_hopeless_component_identity():
    # Where one component gives 1e-35 the other decides; sums of probabilities in float32 would lose it.
    hopeless = FrequencyNoise([1e-35, 1.0])
    log_prob = MixtureNoise(hopeless, UniformNoise(2), weight=0.5).log_prob_all(features(1))[0]
    np.testing.assert_allclose(log_prob, np.log([0.25, 0.75]), atol=1e-6)


@pytest.mark.small
def test_mixture_leaves_the_arrays_of_its_components_alone():
    class Fixed(UniformNoise):  # hands out one array of its own at every call
        def __init__(self):
            super().__init__(3)
            self.table, self.line = (
                np.full((2, 3), -np.log(3.0), np.float32),
                np.full(2, -np.log(3.0), np.float32),
            )

        def log_prob(self, Z, labels, *, n_jobs=None):
            return self.line

        def log_prob_all(self, Z, *, out=None, n_jobs=None):
            return self.table

    fixed, labels = Fixed(), np.zeros(2, np.int32)
    noise = MixtureNoise(fixed, fixed, weight=0.25)
    for _ in range(2):
        np.testing.assert_allclose(noise.log_prob(features(2), labels), -np.log(3.0), rtol=1e-6)
        np.testing.assert_allclose(noise.log_prob_all(features(2)), -np.log(3.0), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_satisfies_the_protocol(kind):
    noise = make(kind)
    assert isinstance(noise, Noise)
    assert as_noise(noise) is noise
    assert noise.n_classes == N_CLASSES
    assert noise.needs_features == (noise.shared_log_prob is None) == (kind in ("tree", "mixture", "nested"))
    assert noise.tree is (None if "frequency" in kind or kind == "uniform" else make_tree())
    assert noise.leaf_tree is (make_tree() if kind == "tree" else None)


@pytest.mark.identity
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_shared_log_prob_is_that_of_every_row_identity(kind):
    noise, Z = make(kind), features(40)
    table = noise.log_prob_all(Z)
    if noise.shared_log_prob is not None:
        np.testing.assert_array_equal(table, np.broadcast_to(noise.shared_log_prob, table.shape))
    mean = mean_log_prob(noise, Z)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, table.mean(axis=0, dtype=np.float64), rtol=1e-6)


# -- saving, and distributions of users


@pytest.mark.identity
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_state_and_back_identity(kind):
    noise, Z = make(kind), features(9)
    state = noise.state()
    header = json.loads(json.dumps(state.header))
    again = restore("noise", State(header, {name: array.copy() for name, array in state.arrays.items()}))
    assert type(again) is type(noise)
    np.testing.assert_array_equal(again.log_prob_all(Z), noise.log_prob_all(Z))
    np.testing.assert_array_equal(again.sample(Z, 3, seed=2)[0], noise.sample(Z, 3, seed=2)[0])


@pytest.mark.small
def test_names_of_stored_arrays_are_those_of_version_1():
    assert make("mixture").state().arrays.keys() == {
        "first.weights",
        "first.biases",
        "first.leaf_class",
        "second.counts",
    }
    assert make("frequency_0.75").state().header == {"kind": "frequency", "exponent": 0.75}
    assert make("uniform").state().header == {"kind": "uniform", "n_classes": N_CLASSES}
    assert make("tree").state().header == {"kind": "tree"}


class Bare:
    """Only what `Noise` asks for: the last class with probability one half."""

    n_classes = 3

    def log_prob_all(self, Z, *, out=None, n_jobs=None):
        table = np.broadcast_to(np.log(np.float32([0.25, 0.25, 0.5])), (len(Z), 3))
        if out is None:
            return table.copy()
        out[...] = table
        return out

    def log_prob(self, Z, labels, *, n_jobs=None):
        return np.log(np.float32([0.25, 0.25, 0.5]))[labels]

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        labels = np.random.default_rng(seed).integers(0, 4, (len(Z), n_draws)).clip(max=2).astype(np.int32)
        return labels, self.log_prob(Z, labels)


@pytest.mark.small
def test_objects_with_the_four_members_are_noise():
    bare, Z = Bare(), features(5)
    noise = as_noise(bare)
    assert isinstance(noise, Noise)
    assert noise.n_classes == 3
    assert noise.needs_features
    assert noise.shared_log_prob is noise.tree is noise.leaf_tree is None
    np.testing.assert_array_equal(noise.log_prob_all(Z), bare.log_prob_all(Z))
    np.testing.assert_array_equal(noise.sample(Z, 4, 1)[0], bare.sample(Z, 4, 1)[0])
    mixture = MixtureNoise(bare, UniformNoise(3), weight=0.5)
    assert mixture.tree is None
    expected = np.log([0.5 / 4 + 0.5 / 3, 0.5 / 4 + 0.5 / 3, 0.5 / 2 + 0.5 / 3])
    np.testing.assert_allclose(mixture.log_prob_all(Z)[0], expected, rtol=1e-6)


@pytest.mark.error
@pytest.mark.small
@pytest.mark.parametrize("wrap", [as_noise, lambda noise: MixtureNoise(UniformNoise(3), noise, weight=0.5)])
def test_saving_of_bare_noise_rejects(wrap):
    with pytest.raises(
        TypeError, match="A model with noise of type Bare cannot be saved; UniformNoise, Freq"
    ):
        wrap(Bare()).state()


@register("noise", "paired classes")
class PairedClasses(UniformNoise):
    """A distribution of one file: uniform over twice as many classes."""

    def __init__(self, n_pairs):
        super().__init__(2 * n_pairs)

    def state(self):
        return State({"kind": "paired classes", "n_pairs": self.n_classes // 2})

    @classmethod
    def from_state(cls, state):
        return cls(state.header["n_pairs"])


@pytest.mark.small
def test_registered_noise_is_restored_also_inside_a_mixture():
    mixture = MixtureNoise(PairedClasses(4), UniformNoise(8), weight=0.5)
    again = restore("noise", mixture.state())
    assert type(again.first) is PairedClasses
    assert again.first.n_classes == 8


@pytest.mark.error
@pytest.mark.small
def test_noise_base_without_state_rejects():
    class Own(Noise):
        n_classes = 3

    with pytest.raises(TypeError, match="noise of type Own cannot be saved"):
        Own().state()


# -- draws


def assert_counts_match(labels, prob):
    """Every class within 5 standard errors of its expected count (a fair sampler fails once in some 10^5
    runs).
    """
    n = labels.size
    counts = np.bincount(labels.ravel(), minlength=len(prob))
    # One more for classes that are expected less than once: there the normal approximation says nothing.
    assert np.all(np.abs(counts - n * prob) <= 5.0 * np.sqrt(n * prob * (1.0 - prob)) + 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_match_log_prob(kind):
    noise = make(kind)
    Z = np.repeat(features(3), 20_000, axis=0)
    labels, _ = noise.sample(Z, n_draws=3, seed=11)
    assert labels.dtype == np.int32
    table = np.exp(noise.log_prob_all(features(3)).astype(np.float64))
    for i in range(3):
        for draw in range(3):  # each row, and each column, has the distribution
            assert_counts_match(labels[20_000 * i : 20_000 * (i + 1), draw], table[i])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_independent_of_each_other(kind):
    noise = make(kind)
    Z = np.repeat(features(1), 50_000, axis=0)
    prob = np.exp(noise.log_prob_all(Z[:1]).astype(np.float64))[0]
    pairs = np.outer(prob, prob).ravel()
    labels, _ = noise.sample(Z, n_draws=2, seed=3)
    other_seed, _ = noise.sample(Z, n_draws=1, seed=2)
    for first, second in [
        (labels[:, 0], labels[:, 1]),  # two draws of a row
        (labels[:-1, 0], labels[1:, 0]),  # two rows
        (labels[:, 0], other_seed[:, 0]),  # two seeds ...
        (labels[0::2, 0], other_seed[1::2, 0]),  # ... also with neighbouring rows swapped
        (labels[1::2, 0], other_seed[0::2, 0]),
    ]:
        assert_counts_match(first.astype(np.int64) * N_CLASSES + second, pairs)


EXTREME = {
    "one class": [1.0],
    "two equal": [1.0, 1.0],
    "one takes all": [1.0] + [1e-9] * 6,
    "one is missing": [1e-12] + [1.0] * 6,
    "geometric": 0.5 ** np.arange(40),
    "powers of ten": 10.0 ** np.arange(-12, 13),
    "zipf": 1.0 / np.arange(1, 1001),
    "alternating": np.tile([1.0, 1e-6], 50),
}


@pytest.mark.identity
@pytest.mark.parametrize("name", EXTREME)
def test_alias_table_identity(name):
    """The probabilities that a table encodes, added up column by column, are those it was made of."""
    prob = np.asarray(EXTREME[name], np.float64)
    prob /= prob.sum()
    n = len(prob)
    threshold, alias = np.full(n, np.nan), np.full(n, -1, np.int32)
    build_alias(prob, threshold, alias)
    assert np.all((threshold >= 0.0) & (threshold <= 1.0))
    assert np.all((alias >= 0) & (alias < n))
    encoded = threshold / n
    np.add.at(encoded, alias, (1.0 - threshold) / n)
    np.testing.assert_allclose(encoded, prob, rtol=1e-9, atol=1e-15)  # float64 sums of up to 1,000 terms


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_counts_match_log_prob(name):
    noise = FrequencyNoise(EXTREME[name])
    labels, log_prob = noise.sample(np.zeros((100_000, 0), np.float32), n_draws=2, seed=5)
    assert labels.min() >= 0
    assert labels.max() < noise.n_classes
    assert_counts_match(labels, np.exp(noise.log_prob_.astype(np.float64)))
    np.testing.assert_array_equal(log_prob, noise.log_prob_[labels])


@pytest.mark.identity
def test_random_tables_identity():
    rng = np.random.default_rng(8)
    for n in [2, 3, 17, 300]:
        for concentration in [0.01, 1.0, 100.0]:
            prob = rng.dirichlet(np.full(n, concentration))
            threshold, alias = np.empty(n), np.empty(n, np.int32)
            build_alias(prob, threshold, alias)
            encoded = threshold / n
            np.add.at(encoded, alias, (1.0 - threshold) / n)
            np.testing.assert_allclose(encoded, prob, atol=1e-14)  # float64 sums of 300 terms


@pytest.mark.identity
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_of_draws_identity(kind):
    noise, Z = make(kind), features(40)
    labels, log_prob = noise.sample(Z, n_draws=3, seed=4)
    assert labels.shape == log_prob.shape == (40, 3)
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(log_prob, noise.log_prob(Z, labels), atol=5e-6)  # the tree adds in two orders


@pytest.mark.invariance
@pytest.mark.parametrize("kind", KINDS)
def test_draws_thread_count_and_batch_invariant(kind):
    noise, Z = make(kind), features(9000)  # several blocks of rows
    labels, log_prob = noise.sample(Z, n_draws=2, seed=9, n_jobs=1)
    for n_jobs in [2, 3]:
        again, again_log_prob = noise.sample(Z, n_draws=2, seed=9, n_jobs=n_jobs)
        np.testing.assert_array_equal(again, labels)
        np.testing.assert_array_equal(again_log_prob, log_prob)
    for n in [1, 33, 4097]:  # a draw is a function of seed, row and column: fewer rows change nothing
        np.testing.assert_array_equal(noise.sample(Z[:n], n_draws=2, seed=9)[0], labels[:n])
    for n_draws in [1, 5]:
        width = min(n_draws, 2)
        np.testing.assert_array_equal(
            noise.sample(Z, n_draws=n_draws, seed=9)[0][:, :width], labels[:, :width]
        )
    assert np.any(noise.sample(Z, n_draws=2, seed=10)[0] != labels)


@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_any_64_bits_are_a_seed(kind, seed):
    noise, Z = make(kind), features(30)
    labels, _ = noise.sample(Z, n_draws=2, seed=seed)
    assert labels.min() >= 0
    assert labels.max() < N_CLASSES
    np.testing.assert_array_equal(noise.sample(Z, n_draws=2, seed=np.uint64(seed))[0], labels)


@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_no_draws(kind):
    noise = make(kind)
    labels, log_prob = noise.sample(features(0), n_draws=2)
    assert labels.shape == log_prob.shape == (0, 2)
    assert noise.log_prob_all(features(0)).shape == (0, N_CLASSES)


# -- errors


@pytest.mark.error
@pytest.mark.small
@pytest.mark.parametrize(
    ("make_noise", "sentence"),
    [
        (lambda: UniformNoise(0), r"one positive finite weight per class; got an array of shape \(0,\)"),
        (lambda: FrequencyNoise([]), r"one positive finite weight per class; got an array of shape \(0,\)"),
        (lambda: FrequencyNoise([[1.0, 2.0]]), r"got an array of shape \(1, 2\)"),
        (lambda: FrequencyNoise([1.0, np.nan]), r"counts\[1\] is nan; .* at least 0"),
        (lambda: FrequencyNoise([1.0, 2.0, -3.0]), r"counts\[2\] is -3.0; .* at least 0"),
        (lambda: FrequencyNoise([np.inf, 2.0]), r"counts\[0\] is inf; .* finite"),
        (
            lambda: MixtureNoise(UniformNoise(2), UniformNoise(3), weight=0.5),
            "same classes; got 2 and 3 classes",
        ),
        (
            lambda: MixtureNoise(UniformNoise(2), UniformNoise(2), weight=0.0),
            "strictly between 0 and 1; got 0.0",
        ),
        (
            lambda: MixtureNoise(UniformNoise(2), UniformNoise(2), weight=1.0),
            "strictly between 0 and 1; got 1.0",
        ),
        (
            lambda: MixtureNoise(UniformNoise(2), UniformNoise(2), weight=float("nan")),
            "strictly between 0 and 1; got nan",
        ),
    ],
)
def test_noise_rejects(make_noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_noise()


@pytest.mark.error
@pytest.mark.small
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_rejects(kind, seed):
    with pytest.raises(ValueError, match=rf"{seed}; give .* an integer in \[0, 2\*\*64\)"):
        make(kind).sample(features(2), seed=seed)


@pytest.mark.identity
def test_edited_noise_keeps_the_proportions_of_its_base():
    Z = np.random.default_rng(0).normal(size=(700, 3)).astype(np.float32)
    base = TreeNoise(LabelTree.fit(Z, np.arange(700) % 9))
    noise = EditedNoise.of(base).plus([0.2, 0.1]).take(np.array([10, 4, 0, 9, 7]))
    table, before = noise.log_prob_all(Z).astype(np.float64), base.log_prob_all(Z).astype(np.float64)
    np.testing.assert_allclose(np.exp(table).sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(table[:, 1] - table[:, 4], before[:, 4] - before[:, 7], atol=1e-5)
    np.testing.assert_allclose(table[:, 3] - table[:, 0], np.log(2.0), atol=1e-5)
    labels, log_prob = noise.sample(Z, 40, seed=3)
    np.testing.assert_array_equal(log_prob, np.take_along_axis(noise.log_prob_all(Z), labels, axis=1))
    np.testing.assert_array_equal(log_prob, noise.log_prob(Z, labels))
    found = np.bincount(labels.ravel(), minlength=5) / labels.size
    np.testing.assert_allclose(found, np.exp(table).mean(axis=0), atol=0.01)
    again = EditedNoise.from_state(noise.state())
    np.testing.assert_array_equal(again.log_prob_all(Z), noise.log_prob_all(Z))
    with pytest.raises(ValueError, match="each class of `base` at most once"):
        EditedNoise(base, [0, 0], [])
