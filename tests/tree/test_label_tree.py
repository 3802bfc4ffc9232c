"""The label tree: against a walking reference, as a distribution, and as an optimum, at every small size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import optimize, sparse

import reference
from coverings import in_turn
from extremax import LabelTree
from extremax.data import planted_hierarchy
from extremax.tuned import TreeFitConfig

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]
# Interpreted, the larger ones take seconds.
SIZES_OF_FITS = [pytest.param(n, marks=pytest.mark.small) if n < 18 else n for n in SIZES]
# Sums of up to 18 float32 terms, each with an error of a few units in the last place of its logit.
ROUNDING = {"rtol": 2e-6, "atol": 2e-5}


def clouds(n_classes, n_samples=None, k=3, seed=0, spread=2.0):
    """Gaussian clouds around random means; every class has rows if there are enough."""
    rng = np.random.default_rng(seed)
    n_samples = 6 * n_classes if n_samples is None else n_samples
    y = (np.arange(n_samples) % n_classes).astype(np.int32)
    Z = spread * rng.standard_normal((n_classes, k))[y] + rng.standard_normal((n_samples, k))
    return Z.astype(np.float32), y


def random_tree(n_classes, k=3, seed=0, scale=1.0):
    """A tree with random parameters in the structure of a fitted one."""
    rng = np.random.default_rng(seed)
    tree = LabelTree.fit(np.zeros((0, k)), [], n_classes=n_classes)
    real = np.abs(tree.biases) < 1e5
    weights = np.where(real[:, None], scale * rng.standard_normal(tree.weights.shape), 0)
    biases = np.where(real, scale * rng.standard_normal(tree.biases.shape), tree.biases)
    leaf_class = np.where(tree.leaf_class >= 0, rng.permutation(n_classes)[tree.leaf_class], -1)
    return LabelTree(weights, biases, leaf_class)


def same_arrays(a, b):
    return all(np.array_equal(x, b.to_arrays()[name]) for name, x in a.to_arrays().items())


# -- the distribution


@pytest.mark.reference
@pytest.mark.parametrize("n_classes", SIZES_OF_FITS)
def test_log_prob_matches_reference(n_classes):
    Z, y = clouds(n_classes, n_samples=2 * n_classes + 3)
    tree = LabelTree.fit(Z, y, n_classes=n_classes)
    expected = reference.tree_log_prob_all(tree, Z)
    everything = np.broadcast_to(np.arange(n_classes), expected.shape)
    np.testing.assert_allclose(tree.log_prob_all(Z), expected, **ROUNDING)
    np.testing.assert_allclose(tree.log_prob(Z, everything), expected, **ROUNDING)
    np.testing.assert_allclose(tree.log_prob(Z, y), expected[np.arange(len(y)), y], **ROUNDING)


@pytest.mark.reference
@in_turn(n_classes=[255, 256, 257, 500, 1025, 2049, 5000], k=[1, 16, 17, 40])
def test_log_prob_of_large_trees_matches_reference(n_classes, k):
    tree = random_tree(n_classes, k, scale=k**-0.5)
    Z = np.random.default_rng(1).standard_normal((11, k)).astype(np.float32)
    expected = reference.tree_log_prob_all(tree, Z)
    np.testing.assert_allclose(tree.log_prob_all(Z), expected, **ROUNDING)
    labels = np.random.default_rng(2).integers(n_classes, size=(11, 7))
    np.testing.assert_allclose(
        tree.log_prob(Z, labels), np.take_along_axis(expected, labels, axis=1), **ROUNDING
    )


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [*SIZES, 300, 3000])
def test_probabilities_sum_to_one_identity(n_classes):
    tree = random_tree(n_classes)
    scale = np.repeat([0.0, 1.0, 1e3, 1e7], 20)[:, None]
    Z = (scale * np.random.default_rng(0).standard_normal((80, 3))).astype(np.float32)
    log_prob = tree.log_prob_all(Z)
    assert np.isfinite(log_prob).all()
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1, atol=1e-5)  # the promise
    assert log_prob.max() <= 1e-6  # rounding


@pytest.mark.identity
@pytest.mark.small
def test_two_classes_are_logistic_regression_identity():
    tree = LabelTree(np.array([[2.0, -1.0]]), np.array([0.5]), np.array([1, 0]))
    Z = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    prob = 1 / (1 + np.exp(-(Z @ np.array([2.0, -1.0]) + 0.5)))
    # float32
    np.testing.assert_allclose(np.exp(tree.log_prob_all(Z)), np.stack([prob, 1 - prob], axis=1), rtol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3, 5, 8, 17, 33])
def test_sampling_frequencies_match_log_prob(n_classes):
    tree = random_tree(n_classes)
    Z = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    n_draws = 50_000
    labels, log_prob = tree.sample(Z, n_draws, seed=3)
    table = tree.log_prob_all(Z)
    np.testing.assert_allclose(log_prob, np.take_along_axis(table, labels, axis=1), **ROUNDING)
    for row in range(4):
        prob = np.exp(table[row].astype(np.float64))
        counts = np.bincount(labels[row], minlength=n_classes)
        error = np.sqrt(n_draws * prob * (1 - prob))
        # + 1: classes that are expected less than once
        assert (np.abs(counts - n_draws * prob) <= 5 * error + 1).all()


def test_pairs_of_decisions_are_independent_match_log_prob():
    """Levels share a hash and draws share a key: the joint distribution of two draws must still be a
    product.
    """
    tree = random_tree(4, scale=0.3)
    Z = np.zeros((50_000, 3), np.float32)
    labels, _ = tree.sample(Z, 2, seed=5)
    prob = np.exp(tree.log_prob_all(Z[:1])[0].astype(np.float64))
    # draws of a row, rows of a draw
    for pairs in (labels[:, 0] * 4 + labels[:, 1], labels[:-1, 0] * 4 + labels[1:, 0]):
        expected = len(pairs) * np.outer(prob, prob).reshape(-1)
        assert (np.abs(np.bincount(pairs, minlength=16) - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("n_classes", [1, 3, 5, 9, 17, 33, 129])
def test_padding_is_never_sampled(n_classes):
    rng = np.random.default_rng(0)
    tree = random_tree(n_classes)
    for scale in (0.0, 1.0, 1e6):
        labels, log_prob = tree.sample(
            (scale * rng.standard_normal((2000, 3))).astype(np.float32), 20, seed=1
        )
        assert labels.min() >= 0
        assert labels.max() < n_classes
        assert log_prob.min() > -200  # a decision that is drawn has a probability of at least 2**-24
    np.testing.assert_array_equal(tree.candidates(np.zeros((2, 3)), n_classes)[0] < 0, False)


@pytest.mark.invariance
@pytest.mark.small
def test_a_draw_depends_on_seed_row_and_number_alone_invariant():
    tree, Z = random_tree(33), np.random.default_rng(0).standard_normal((70, 3)).astype(np.float32)
    labels, log_prob = tree.sample(Z, 5, seed=2)
    fewer, _ = tree.sample(Z[:40], 2, seed=2)
    np.testing.assert_array_equal(labels[:40, :2], fewer)
    same, same_log_prob = tree.sample(Z, 5, seed=2, n_jobs=2)
    np.testing.assert_array_equal(labels, same)
    np.testing.assert_array_equal(log_prob, same_log_prob)
    other, _ = tree.sample(np.repeat(Z[:1], 70, axis=0), 5, seed=3)
    alone, _ = tree.sample(np.repeat(Z[:1], 70, axis=0), 5, seed=2)
    assert (other != alone).any()
    # seed and row do not make up for each other: 3 ^ r = 2 ^ (r ^ 1)
    assert (other != alone[np.arange(70) ^ 1]).mean() > 0.3
    assert tree.sample(Z, 0)[0].shape == (70, 0)
    assert tree.sample(Z[:0], 3)[0].shape == (0, 3)


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [1, 2, 5, 16, 33, 300])
def test_beam_as_wide_as_the_tree_is_exact_identity(n_classes):
    tree, Z = random_tree(n_classes), np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
    table = tree.log_prob_all(Z)
    labels, log_prob = tree.top_k(Z, 7, beam_width=n_classes)
    found = min(7, n_classes)
    np.testing.assert_array_equal(labels[:, :found], reference.ranked(table, found))
    np.testing.assert_allclose(
        log_prob[:, :found], np.take_along_axis(table, labels[:, :found], axis=1), **ROUNDING
    )
    assert (labels[:, found:] == -1).all()
    assert (log_prob[:, found:] == -np.inf).all()
    every, _ = tree.candidates(Z, 10 * n_classes)
    np.testing.assert_array_equal(
        np.sort(every, axis=1), np.broadcast_to(np.arange(n_classes), (30, n_classes))
    )


@pytest.mark.reference
@pytest.mark.small
def test_beam_keeps_the_best_nodes_of_each_level_matches_reference():
    tree, Z = random_tree(33), np.random.default_rng(0).standard_normal((25, 3)).astype(np.float32)
    width = 4
    labels, log_prob = tree.candidates(Z, width)
    for row, x in enumerate(Z.astype(np.float64)):
        beam = [(0.0, 0)]
        while beam[0][1] < len(tree.biases):
            children = []
            for total, node in beam:
                a = tree.weights[node].astype(np.float64) @ x + tree.biases[node]
                children += [
                    (total - np.logaddexp(0, a), 2 * node + 1),
                    (total - np.logaddexp(0, -a), 2 * node + 2),
                ]
            beam = sorted(children, reverse=True)[:width]
        expected = {tree.leaf_class[node - len(tree.biases)]: total for total, node in beam}
        assert set(labels[row]) == set(expected)
        np.testing.assert_allclose(log_prob[row], [expected[c] for c in labels[row]], **ROUNDING)


@pytest.mark.small
def test_ties_go_to_the_smaller_label():
    flat = LabelTree(np.zeros((7, 1)), np.zeros(7), np.array([5, 2, 7, 0, 1, 4, 3, 6]))
    labels, log_prob = flat.top_k(np.ones((2, 1)), 8)
    np.testing.assert_array_equal(labels, [range(8)] * 2)
    np.testing.assert_allclose(log_prob, np.log(1 / 8), rtol=1e-6)  # float32


@pytest.mark.identity
@pytest.mark.small
def test_level_log_prob_adds_up_identity():
    Z, y = clouds(21)
    tree = LabelTree.fit(Z, y)
    levels = tree.level_log_prob(Z, y)
    assert levels.shape == (tree.depth,)
    # float32 terms
    assert levels.sum() == pytest.approx(tree.log_prob(Z, y).mean(dtype=np.float64), abs=1e-5)


def test_many_callers_at_once_get_the_same_answers():
    tree, Z = random_tree(500), np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)
    expected = (
        tree.log_prob_all(Z, n_jobs=1),
        tree.sample(Z, 3, seed=1, n_jobs=1)[0],
        tree.top_k(Z, 5, n_jobs=1)[0],
    )
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(lambda: (tree.log_prob_all(Z), tree.sample(Z, 3, seed=1)[0], tree.top_k(Z, 5)[0]))
            for _ in range(24)
        ]
        for job in jobs:
            for got, wanted in zip(job.result(), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


# -- the fit


@pytest.mark.parametrize("n_classes", SIZES_OF_FITS)
def test_structure_is_balanced(n_classes):
    Z, y = clouds(n_classes)
    tree = LabelTree.fit(Z, y)
    assert tree.depth == int(np.ceil(np.log2(n_classes)))
    assert tree.weights.shape == (2**tree.depth - 1, 3)
    np.testing.assert_array_equal(tree.leaf_class[tree.class_leaf], np.arange(n_classes))
    for node in range(len(tree.biases)):
        left, right = reference.tree_node_classes(tree, node)
        total = len(left) + len(right)
        assert len(left) == total - total // 2  # padding shows only where one class is left
        if len(right) == 0:
            assert tree.biases[node] <= -1e6
            assert not tree.weights[node].any()


@pytest.mark.reference
@pytest.mark.parametrize("rows_per_class", [1, 4, 30])  # nodes with fewer points than features, and with more
@pytest.mark.parametrize("weighted", [False, True])
def test_node_parameters_are_the_optimum_matches_scipy(rows_per_class, weighted):
    n_classes, k = 11, 5
    Z, y = clouds(n_classes, rows_per_class * n_classes, k)
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float) if weighted else np.ones(len(y))
    penalty, bias_penalty = np.array([0.3, 0.1, 0.02, 0.5]), np.array([0.1, 0.4, 0.2, 0.03])
    options = {
        "regularization": penalty,
        "bias_regularization": bias_penalty,
        "sample_weight": weight,
        "config": TreeFitConfig(tolerance=0),
    }
    tree = LabelTree.fit(Z, y, **options)
    again = tree.refit(Z, y, **options)
    from_zero = LabelTree(0 * tree.weights, np.minimum(0, tree.biases), tree.leaf_class).refit(
        Z, y, **options
    )
    for node in range(len(tree.biases)):
        left, right = reference.tree_node_classes(tree, node)
        inside = np.isin(y, np.concatenate([left, right]))
        if len(right) == 0 or not (weight[inside] > 0).any():
            continue
        X, zeta = Z[inside].astype(np.float64), np.where(np.isin(y[inside], right), 1.0, -1.0)
        level = (node + 1).bit_length() - 1
        data = (X, zeta, weight[inside], penalty[level], bias_penalty[level])
        best = optimize.minimize(
            lambda theta, data=data: tuple(-v for v in reference.node_objective(theta, *data)),
            np.zeros(k + 1),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-9},
        ).x
        for fitted in (tree, again, from_zero):
            # The points are float32 and so are sums over a block of them.
            np.testing.assert_allclose(
                np.append(fitted.weights[node], fitted.biases[node]), best, rtol=1e-4, atol=1e-4
            )


# nodes with fewer points than features: within one block, and beyond
@pytest.mark.parametrize("n_samples", [40, 500, 1000])
def test_many_features_end_where_the_gradient_is_zero(n_samples):
    Z, y = clouds(4, n_samples, 300)
    tree = LabelTree.fit(Z, y, config=TreeFitConfig(tolerance=0))
    for node in range(3):
        left, right = reference.tree_node_classes(tree, node)
        inside = np.isin(y, [*left, *right])
        zeta = np.where(np.isin(y[inside], right), 1.0, -1.0)
        theta = np.append(tree.weights[node], tree.biases[node]).astype(np.float64)
        _, gradient = reference.node_objective(
            theta, Z[inside].astype(np.float64), zeta, np.ones(len(zeta)), 0.1, 0.1
        )
        # float32 sums over hundreds of points and features; 100 at the start
        assert np.abs(gradient).max() < 1e-3


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [9, 40])
def test_split_is_the_best_for_its_parameters_identity(n_classes):
    """At convergence no exchange of classes helps: all Delta on the right are at least those on the left."""
    Z, y = clouds(n_classes, 20 * n_classes, 4)
    # classes of different sizes
    kept = np.random.default_rng(1).random(len(y)) < np.linspace(0.1, 1, n_classes)[y]
    Z, y = Z[kept], y[kept]
    tree = LabelTree.fit(Z, y, n_classes=n_classes, config=TreeFitConfig(tolerance=0, max_alternations=500))
    sums = np.zeros((n_classes, 5))
    np.add.at(sums, y, np.hstack([Z, np.ones((len(Z), 1))]))
    for node in range(len(tree.biases)):
        left, right = reference.tree_node_classes(tree, node)
        if len(left) + len(right) > 2:
            delta = sums @ np.append(tree.weights[node], tree.biases[node])
            assert delta[left].max() <= delta[right].min() + 1e-3  # Delta sums 20 float32 logits


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_alternation_raises_likelihood_over_first_split(seed):
    data = planted_hierarchy(6000, 256, 8, seed=seed)
    first = LabelTree.fit(data.X, data.y, config=TreeFitConfig(max_alternations=0))
    one_start = LabelTree.fit(data.X, data.y, config=TreeFitConfig(n_starts=1))
    several = LabelTree.fit(data.X, data.y)
    likelihood = [tree.log_prob(data.X, data.y).mean() for tree in (first, one_start, several)]
    # Measured: 0.35 nats and more.  The first split is along the principal direction of class sums; it stays
    # that way if the re-split ignores the fitted parameters.
    assert likelihood[1] > likelihood[0] + 0.1
    assert likelihood[2] > likelihood[0] + 0.1
    root = [set(reference.tree_node_classes(tree, 0)[1]) for tree in (first, one_start)]
    assert root[0] != root[1]


def test_bias_takes_part_in_the_split():
    """Delta_y contains n_y b: without informative features, frequent classes go to one side."""
    y = np.repeat([0, 1, 2, 3], [400, 4, 300, 4])
    tree = LabelTree.fit(np.zeros((len(y), 2)), y)
    assert {frozenset(side.tolist()) for side in reference.tree_node_classes(tree, 0)} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


@pytest.mark.parametrize("n_classes", [5, 24, 25, 60, 600])
def test_equal_classes_stay_in_order(n_classes):
    """Ties go by class, in small nodes and in large ones."""
    tree = LabelTree.fit(np.ones((2 * n_classes, 2)), np.arange(2 * n_classes) % n_classes)
    np.testing.assert_array_equal(tree.leaf_class[tree.leaf_class >= 0], np.arange(n_classes))


@pytest.mark.planted
def test_planted_halves_are_found_recovers():
    rng = np.random.default_rng(0)
    code = np.array([[int(b) for b in f"{c:04b}"] for c in range(16)]) * 2 - 1
    means = code * [8.0, 4.0, 2.0, 1.0] @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    names = rng.permutation(16)
    y = rng.integers(16, size=4000)
    Z = means[y] + 0.2 * rng.standard_normal((4000, 4))
    tree = LabelTree.fit(Z, names[y])
    for node in range(15):
        halves = [
            {format(np.flatnonzero(names == c)[0], "04b") for c in side}
            for side in reference.tree_node_classes(tree, node)
        ]
        level = (node + 1).bit_length() - 1
        for half in halves:
            # one value of every coarser digit, and of this one
            assert len({c[: level + 1] for c in half}) == 1
    assert tree.log_prob(Z, names[y]).mean() > -0.02  # clouds that hardly touch


@pytest.mark.planted
def test_one_hot_truth_beats_frequencies_recovers():
    data = planted_hierarchy(20_000, 500, 16, seed=3, n_test=2000)
    tree = LabelTree.fit(data.X, data.y, regularization=1.0)
    prior = np.bincount(data.y, minlength=500) / len(data.y)
    held_out = tree.log_prob(data.X_test, data.y_test).mean()
    assert held_out > np.log(prior[data.y_test]).mean() + 1.5  # measured: 2.2 nats
    # nobody beats the truth
    assert held_out < data.truth.log_prob_all(data.X_test)[np.arange(2000), data.y_test].mean()


@pytest.mark.invariance
def test_thread_count_changes_nothing_invariant():
    data = planted_hierarchy(30_000, 3000, 6, seed=0)
    trees = [
        LabelTree.fit(data.X, data.y, n_jobs=n_jobs, config=TreeFitConfig(max_points=4000))
        for n_jobs in (1, 2, 3)
    ]
    assert same_arrays(trees[0], trees[1])
    assert same_arrays(trees[0], trees[2])
    refits = [trees[0].refit(data.X, data.y, regularization=1.0, n_jobs=n_jobs) for n_jobs in (1, 2)]
    assert same_arrays(*refits)
    assert not same_arrays(trees[0], refits[0])
    tables = [trees[0].log_prob_all(data.X[:100], n_jobs=n_jobs) for n_jobs in (1, 2)]
    np.testing.assert_array_equal(*tables)


@pytest.mark.invariance
@pytest.mark.parametrize("subtree_points", [1, 200, 10**6])
def test_cut_into_subtrees_invariant(subtree_points):
    data = planted_hierarchy(3000, 100, 6, seed=0)
    expected = LabelTree.fit(data.X, data.y)
    config = TreeFitConfig(subtree_points=subtree_points)
    assert same_arrays(expected, LabelTree.fit(data.X, data.y, config=config))
    assert same_arrays(
        expected.refit(data.X, data.y, regularization=1.0),
        expected.refit(data.X, data.y, config=config, regularization=1.0),
    )


def test_numbers_of_the_config_reach_the_fit():
    data = planted_hierarchy(6000, 64, 8, seed=0)
    base = LabelTree.fit(data.X, data.y)
    for name, value in {
        "several_starts_points": 10**6,
        "start_iterations": 1,
        "max_newton_steps": 1,
        "power_steps": 1,
    }.items():
        other = LabelTree.fit(data.X, data.y, config=TreeFitConfig(**{name: value}))
        assert not same_arrays(base, other), name
        np.testing.assert_allclose(np.exp(other.log_prob_all(data.X[:5])).sum(axis=1), 1, atol=1e-5)


@pytest.mark.invariance
def test_class_names_and_row_order_do_not_matter_invariant():
    Z, y = clouds(37, 900, 4, seed=5)
    rng = np.random.default_rng(0)
    names, rows = rng.permutation(37), rng.permutation(900)
    plain = LabelTree.fit(Z, y, config=TreeFitConfig(tolerance=0)).log_prob_all(Z)
    renamed = LabelTree.fit(Z, names[y], config=TreeFitConfig(tolerance=0)).log_prob_all(Z)
    shuffled = LabelTree.fit(Z[rows], y[rows], config=TreeFitConfig(tolerance=0)).log_prob_all(Z)
    # Other orders of summation, float32; without ties the structure is the same, and Newton ends at the same
    # place.
    np.testing.assert_allclose(renamed[:, names], plain, atol=2e-3)
    np.testing.assert_allclose(shuffled, plain, atol=2e-3)


@pytest.mark.identity
@pytest.mark.small
def test_a_weight_is_a_repetition_identity():
    Z, y = clouds(7, 60)
    repeat = np.random.default_rng(0).integers(0, 4, 60)
    weighted = LabelTree.fit(Z, y, sample_weight=repeat, config=TreeFitConfig(tolerance=0))
    repeated = LabelTree.fit(
        np.repeat(Z, repeat, axis=0), np.repeat(y, repeat), n_classes=7, config=TreeFitConfig(tolerance=0)
    )
    np.testing.assert_array_equal(weighted.leaf_class, repeated.leaf_class)
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=1e-3)  # float32 sums of other terms
    np.testing.assert_allclose(weighted.biases, repeated.biases, atol=1e-3)


def test_a_sample_of_the_points_is_nearly_as_good():
    data = planted_hierarchy(40_000, 64, 8, seed=1)
    full = LabelTree.fit(
        data.X, data.y, config=TreeFitConfig(max_points=None, tolerance=0, max_alternations=500)
    )
    sampled = LabelTree.fit(data.X, data.y, config=TreeFitConfig(max_points=4000))
    likelihood = [tree.log_prob(data.X, data.y).mean() for tree in (full, sampled)]
    assert (
        likelihood[1] > likelihood[0] - 0.02
    )  # nine parameters on 4000 points: 0.001 nats at each of 6 levels, and other splits
    other = LabelTree.fit(data.X, data.y, random_state=1, config=TreeFitConfig(max_points=4000))
    assert not same_arrays(sampled, other)


def test_regularization_shrinks_weights():
    Z, y = clouds(20)
    norms = [np.abs(LabelTree.fit(Z, y, regularization=r).weights).sum() for r in (0.01, 0.1, 1.0, 10.0)]
    assert norms == sorted(norms, reverse=True)
    tree = LabelTree.fit(Z, y)
    only_biases = tree.refit(Z, y, regularization=1e9, bias_regularization=1e-4)
    frequencies = np.log(np.bincount(y) / len(y))
    # penalised ever so slightly
    np.testing.assert_allclose(only_biases.log_prob_all(Z[:1])[0], frequencies, atol=1e-2)
    top = tree.refit(Z, y, regularization=[1e9, 0.1, 0.1, 0.1, 0.1])
    assert np.abs(top.weights[0]).max() < 1e-6
    np.testing.assert_array_equal(top.weights[1:3] != 0, True)


def test_refit_on_other_features_keeps_the_structure():
    Z, y = clouds(20)
    tree = LabelTree.fit(Z, y)
    other = np.hstack([Z, Z**2])
    refitted = tree.refit(other, y)
    np.testing.assert_array_equal(refitted.leaf_class, tree.leaf_class)
    assert refitted.n_components == 6
    assert refitted.log_prob(other, y).mean() > tree.log_prob(Z, y).mean()


def test_refit_recovers_from_parameters_that_do_not_suit():
    Z, y = clouds(20)
    tree = LabelTree.fit(Z, y)
    expected = tree.refit(Z, y, config=TreeFitConfig(tolerance=0))
    for scale in (1e4, 1e30):  # far from the optimum, and beyond float32
        wild = LabelTree(
            scale * tree.weights,
            np.where(tree.biases > -1e5, scale * tree.biases, tree.biases),
            tree.leaf_class,
        )
        # Where the likelihood is flat to rounding, Newton ends early.
        np.testing.assert_allclose(
            wild.refit(Z, y, config=TreeFitConfig(tolerance=0)).weights, expected.weights, atol=1e-2
        )


# -- unusual data


@pytest.mark.small
@pytest.mark.parametrize(
    ("Z", "y", "n_classes"),
    [
        (np.zeros((0, 2)), [], 1),
        (np.zeros((0, 2)), [], 5),
        (np.zeros((3, 2)), [0, 0, 0], None),
        (np.zeros((3, 2)), [0, 0, 0], 4),
        (np.full((12, 2), 3.0), np.arange(12) % 6, None),
        (np.random.default_rng(0).standard_normal((11, 2)), np.arange(11), None),
        (np.random.default_rng(0).standard_normal((11, 2)), [9] * 11, 20),
        (1e6 * np.random.default_rng(0).standard_normal((30, 2)), np.arange(30) % 5, None),
        (1e-6 * np.random.default_rng(0).standard_normal((30, 2)), np.arange(30) % 5, None),
        (1e3 + np.random.default_rng(0).standard_normal((30, 2)), np.arange(30) % 5, None),
        (np.random.default_rng(0).standard_normal((40, 1)), np.arange(40) % 5, None),
    ],
    ids=[
        "empty-1",
        "empty-5",
        "one-class",
        "classes-without-data",
        "constant",
        "one-row-each",
        "one-of-20",
        "huge",
        "tiny",
        "off-centre",
        "one-feature",
    ],
)
def test_any_data_give_a_distribution(Z, y, n_classes):
    tree = LabelTree.fit(Z, y, n_classes=n_classes)
    assert tree.n_classes == (max(y) + 1 if n_classes is None else n_classes)
    rows = np.concatenate([np.asarray(Z, np.float32), np.zeros((1, np.shape(Z)[1]), np.float32)])
    log_prob = tree.log_prob_all(rows)
    assert np.isfinite(log_prob).all()
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1, atol=1e-5)  # the promise
    labels, drawn = tree.sample(rows, 3)
    # logits up to 1e3
    np.testing.assert_allclose(drawn, np.take_along_axis(log_prob, labels, axis=1), rtol=1e-5, atol=2e-5)


def test_huge_scales_still_separate():
    """Newton must not stop far from the optimum where features are badly scaled or far from the origin."""
    Z, y = clouds(6, 300, 2, spread=6.0)
    base = LabelTree.fit(Z, y, regularization=1e-3).log_prob(Z, y).mean()
    for scale, shift in ((1e3, 0.0), (1.0, 300.0)):
        moved = (scale * Z + shift).astype(np.float32)
        strength = {"regularization": 1e-3 * scale**-2, "bias_regularization": 1e-7}
        # features rounded to 7 digits
        assert LabelTree.fit(moved, y, **strength).log_prob(moved, y).mean() > base - 0.05


@pytest.mark.invariance
@pytest.mark.small
def test_other_types_and_layouts_give_the_same_tree_invariant():
    Z, y = clouds(7, 60)
    tree = LabelTree.fit(Z, y)
    frozen = Z.copy()
    frozen.flags.writeable = False
    for other in (
        Z.astype(np.float64),
        np.asfortranarray(Z),
        Z.tolist(),
        frozen,
        np.repeat(Z, 2, axis=0)[::2],
    ):
        assert same_arrays(tree, LabelTree.fit(other, y.astype(np.uint8)))
        np.testing.assert_array_equal(tree.log_prob_all(other), tree.log_prob_all(Z))
    assert frozen.flags.writeable is False


@pytest.mark.invariance
@pytest.mark.small
def test_arrays_and_back_same_everywhere():
    Z, y = clouds(9)
    tree = LabelTree.fit(Z, y)
    arrays = {name: array.copy() for name, array in tree.to_arrays().items()}
    for array in arrays.values():
        array.flags.writeable = False  # as a memory-mapped file would give them
    loaded = LabelTree.from_arrays(arrays)
    assert same_arrays(tree, loaded)
    assert same_arrays(tree, LabelTree.from_state(tree.state()))
    np.testing.assert_array_equal(loaded.log_prob_all(Z), tree.log_prob_all(Z))
    np.testing.assert_array_equal(loaded.sample(Z, 4, seed=1)[0], tree.sample(Z, 4, seed=1)[0])
    assert repr(loaded) == "LabelTree(n_classes=9, n_components=3, depth=4)"


@pytest.mark.reference
def test_padding_may_be_elsewhere_in_a_tree_made_elsewhere_matches_reference():
    # node 3 goes left; node 2 goes right, so node 5 is never reached
    leaf_class = np.array([1, -1, 0, 2, -1, -1, 4, 3])
    weights, biases = np.ones((7, 1)), np.zeros(7)
    weights[[2, 3]], biases[2], biases[3] = 0, 1e6, -1e6
    tree, Z = LabelTree(weights, biases, leaf_class), np.linspace(-2, 2, 9, dtype=np.float32)[:, None]
    expected = reference.tree_log_prob_all(tree, Z)
    np.testing.assert_allclose(tree.log_prob_all(Z), expected, **ROUNDING)
    np.testing.assert_allclose(np.exp(expected).sum(axis=1), 1, atol=1e-12)  # float64
    assert tree.sample(np.repeat(Z, 1000, axis=0), 3)[0].min() == 0
    np.testing.assert_array_equal(np.sort(tree.candidates(Z, 8)[0], axis=1), np.tile(np.arange(5), (9, 1)))
    with pytest.raises(ValueError, match="not made by LabelTree"):
        tree.refit(Z, np.zeros(9, int))


def test_a_million_classes_fit_in_a_fifth_of_a_gigabyte():
    tree = LabelTree.fit(np.zeros((0, 16)), [], n_classes=1_000_000)
    assert np.exp(tree.log_prob_all(np.ones((1, 16))).astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    held = [tree._table, tree.biases, tree.leaf_class, tree.class_leaf, *tree._chunks[:2]]
    assert sum(a.nbytes for a in held) < 0.2e9
    # and nothing else but three numbers: two of the arrays share an entry
    assert len(vars(tree)) == len(held) + 2


@pytest.mark.small
def test_out_is_filled_and_returned():
    tree, Z = random_tree(9), np.ones((4, 3), np.float32)
    out = np.full((4, 9), np.nan, np.float32)
    assert tree.log_prob_all(Z, out=out) is out
    np.testing.assert_array_equal(out, tree.log_prob_all(Z))


# -- errors

Z4, Y4 = np.zeros((4, 2)), [0, 1, 2, 2]


@pytest.mark.error
@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"Z": np.zeros(4)}, ValueError, "Expected 2D array"),
        ({"Z": np.full((4, 2), np.nan)}, ValueError, r"Z\[0, 0\] is NaN"),
        ({"Z": np.full((4, 2), np.inf)}, ValueError, r"Z\[0, 0\] is inf"),
        ({"Z": np.zeros((4, 0))}, ValueError, "0 feature"),
        ({"Z": sparse.csr_array(Z4)}, TypeError, "sparse"),
        ({"y": [0, 1]}, ValueError, r"y has shape \(2,\), but Z has 4 rows"),
        ({"y": [0, 1, -1, 2]}, ValueError, "y holds -1"),
        ({"y": [0.0, 1.0, 2.0, 2.0]}, TypeError, "float64"),
        ({"y": ["a", "b", "c", "c"]}, TypeError, "integers"),
        ({"n_classes": 2}, ValueError, "at least 3"),
        ({"Z": np.zeros((0, 2)), "y": []}, ValueError, "at least 1"),
        ({"regularization": 0}, ValueError, "regularization is 0; give positive"),
        ({"regularization": [0.1]}, ValueError, r"one for each of the 2 levels"),
        ({"bias_regularization": np.inf}, ValueError, "bias_regularization is inf"),
        ({"sample_weight": [1, 1, 1]}, ValueError, "sample_weight has shape"),
        ({"sample_weight": [1, 1, 1, -1]}, ValueError, r"sample_weight\[3\] is -1"),
        ({"config": TreeFitConfig(max_points=0)}, ValueError, "max_points is 0"),
        ({"config": TreeFitConfig(n_starts=0)}, ValueError, "n_starts is 0"),
        ({"config": TreeFitConfig(max_alternations=-1)}, ValueError, "max_alternations is -1"),
        ({"config": TreeFitConfig(tolerance=np.nan)}, ValueError, "tolerance is nan"),
        ({"random_state": "x"}, TypeError, "random_state"),
    ],
)
def test_fit_rejects(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        LabelTree.fit(**({"Z": Z4, "y": Y4} | arguments))


@pytest.mark.error
@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda t: t.sample(np.zeros((2, 5))), ValueError, "Z has 5 features"),
        (lambda t: t.sample(Z4, -1), ValueError, "n_draws is -1"),
        (lambda t: t.sample(Z4, seed=-1), ValueError, "-1"),
        (lambda t: t.log_prob(Z4, [0, 1, 2, 3]), ValueError, "labels holds 3; the classes are 0 to 2"),
        (lambda t: t.log_prob(Z4, [0, 1]), ValueError, "labels has shape"),
        (lambda t: t.log_prob(Z4, 1), ValueError, "labels has shape"),
        (lambda t: t.log_prob_all(Z4, out=np.zeros((4, 3))), ValueError, "out is float64"),
        (lambda t: t.log_prob_all(Z4, out=np.zeros((4, 2), np.float32)), ValueError, r"shape \(4, 2\)"),
        (lambda t: t.top_k(Z4, 0), ValueError, "k is 0"),
        (lambda t: t.candidates(Z4, 0), ValueError, "beam_width is 0"),
        (lambda t: t.refit(Z4, [0, 1, 2, 3]), ValueError, "y holds 3"),
    ],
)
def test_tree_rejects(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(random_tree(3, 2))


@pytest.mark.error
@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"leaf_class": [0, 1, 2]}, "1, 2, 4"),
        ({"leaf_class": [[0, 1], [2, -1]]}, "1, 2, 4"),
        ({"leaf_class": [0.0, 1.0, 2.0, -1.0]}, "float64"),
        ({"leaf_class": [0, 1, 1, -1]}, "each of the classes 0 to 2 once"),
        ({"leaf_class": [0, 1, 7, -1]}, "each of the classes"),
        ({"leaf_class": [-1, -1, -1, -1]}, "each of the classes"),
        ({"weights": np.zeros((2, 1))}, r"weights has shape \(2, 1\)"),
        ({"weights": np.zeros(3)}, "weights has shape"),
        ({"biases": np.zeros(2)}, r"biases \(2,\)"),
        ({"biases": [0, 0, np.nan]}, "NaN"),
        ({"biases": [0, 0, 0]}, "padding leaf"),
        ({"leaf_class": [0, 1, -1, 2]}, "padding leaf"),
        ({"weights": np.ones((3, 1))}, "padding leaf"),
    ],
)
def test_foreign_arrays_reject(arrays, sentence):
    good = {"weights": np.zeros((3, 1)), "biases": [0, 0, -1e6], "leaf_class": [0, 1, 2, -1]}
    LabelTree(**good)
    with pytest.raises(ValueError, match=sentence):
        LabelTree(**(good | arrays))
