"""The signal-to-noise ratio of section 4: three computations agree, and it is best at p_n = p_D."""

from __future__ import annotations

import numpy as np
import pytest
import theory_reference
from scipy.optimize import minimize

from extremax.data import planted_hierarchy
from extremax.experiments.paper import theory
from extremax.tree.noise import FrequencyNoise, TreeNoise, UniformNoise
from extremax.tree.tuning import fit_tuned

pytestmark = pytest.mark.identity


def random_tables(n, n_classes, seed, concentration=1.0):
    """Two tables of distributions with no class below 0.003, so that 200,000 draws see every class often."""
    rng = np.random.default_rng(seed)
    tables = rng.dirichlet(np.full(n_classes, concentration), size=(2, n))
    return 0.97 * tables + 0.03 / n_classes


CASES = [(1, 2), (3, 5), (4, 9)]


# -- three ways


@pytest.mark.parametrize(("n", "n_classes"), CASES)
def test_alpha_and_matrices_agree_identity(n, n_classes):
    p_data, p_noise = random_tables(n, n_classes, seed=n)
    exact = theory.snr(p_data, p_noise)
    brute = theory_reference.snr_from_matrices(p_data, p_noise)
    assert exact == pytest.approx(brute, rel=1e-10)  # float64 sums of at most 36 terms


@pytest.mark.parametrize("n_negatives", [1, 3])
@pytest.mark.parametrize(("n", "n_classes"), CASES)
def test_simulation_agrees_with_alpha(n, n_classes, n_negatives):
    p_data, p_noise = random_tables(n, n_classes, seed=n)
    exact = theory_reference.snr_from_matrices(p_data, p_noise, n_negatives=n_negatives)
    simulated = theory_reference.simulate_snr(
        p_data, p_noise, n_negatives=n_negatives, n_draws=200_000, seed=1
    )
    assert abs(simulated.snr - exact) < 4 * simulated.standard_error
    assert simulated.standard_error < 0.02 * exact  # a bound that says something


def test_simulation_error_is_honest():
    """Over many seeds the deviations, in standard errors, have variance one."""
    p_data, p_noise = random_tables(2, 4, seed=0)
    exact = theory.snr(p_data, p_noise)
    runs = [theory_reference.simulate_snr(p_data, p_noise, n_draws=3000, seed=s) for s in range(150)]
    deviations = np.array([(run.snr - exact) / run.standard_error for run in runs])
    # 150 values: mean within 5 standard errors plus the bias of 1 / trace, variance within 5 of its own.
    assert abs(deviations.mean()) < 0.5
    assert abs(deviations.var() - 1.0) < 5 * np.sqrt(2 / 150)


def test_simulation_depends_on_its_seed_alone_invariant():
    p_data, p_noise = random_tables(2, 4, seed=0)
    first, again, other = (
        theory_reference.simulate_snr(p_data, p_noise, n_draws=1000, seed=s) for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_hessian_and_gradient_match_differences():
    p_data, p_noise = random_tables(2, 3, seed=4)
    xi, step = theory_reference.optimal_scores(p_data, p_noise), 1e-5
    _, gradient = theory_reference.expected_loss(xi + 0.3, p_data, p_noise)
    matrix = theory_reference.hessian(p_data, p_noise)
    for i in range(xi.size):
        shift = np.zeros(xi.size)
        shift[i] = step
        shift = shift.reshape(xi.shape)
        above, below = (
            theory_reference.expected_loss(xi + 0.3 + sign * shift, p_data, p_noise)[0] for sign in (1, -1)
        )
        # rounding 1e-16 / 1e-5 and step^2
        assert gradient.ravel()[i] == pytest.approx((above - below) / (2 * step), abs=1e-9)
        up, down = (theory_reference.expected_loss(xi + sign * shift, p_data, p_noise)[1] for sign in (1, -1))
        np.testing.assert_allclose(matrix[i], (up - down).ravel() / (2 * step), atol=1e-9)
    np.testing.assert_allclose(np.diag(matrix), theory.alpha(p_data, p_noise).ravel(), rtol=1e-12)


@pytest.mark.parametrize("n_negatives", [1, 2])
def test_covariance_matches_enumeration(n_negatives):
    """Enumerate every x, positive and tuple of negatives, with the gradient of the paper's appendix."""
    p_data, p_noise = random_tables(2, 3, seed=5)
    n, n_classes = p_data.shape
    xi = theory_reference.optimal_scores(p_data, p_noise)
    mean, second = np.zeros(xi.size), np.zeros((xi.size, xi.size))
    for x in range(n):
        for y in range(n_classes):
            for negatives in np.ndindex(*[n_classes] * n_negatives):
                g = np.zeros(xi.shape)
                g[x, y] -= n / (1 + np.exp(xi[x, y]))
                prob = p_data[x, y] / n
                for c in negatives:
                    g[x, c] += n / (1 + np.exp(-xi[x, c])) / n_negatives
                    prob *= p_noise[x, c]
                mean += prob * g.ravel()
                second += prob * np.outer(g, g)
    np.testing.assert_allclose(mean, 0.0, atol=1e-14)  # the minimum
    np.testing.assert_allclose(
        theory_reference.gradient_covariance(p_data, p_noise, n_negatives=n_negatives), second, atol=1e-13
    )
    if n_negatives == 1:  # Eq. 14
        a = theory.alpha(p_data, p_noise)[0]
        np.testing.assert_allclose(
            second[:n_classes, :n_classes], n * (np.diag(a) - 2 * np.outer(a, a)), atol=1e-13
        )


def test_reparameterization_invariant():
    p_data, p_noise = random_tables(2, 4, seed=6)
    jacobian = np.random.default_rng(0).normal(size=(8, 8))
    H = jacobian.T @ theory_reference.hessian(p_data, p_noise) @ jacobian
    covariance = jacobian.T @ theory_reference.gradient_covariance(p_data, p_noise) @ jacobian
    # The condition of a random 8 x 8 matrix, squared, times float64 rounding.
    assert 1.0 / np.trace(np.linalg.solve(H, covariance)) == pytest.approx(
        theory.snr(p_data, p_noise), rel=1e-8
    )


def test_class_and_row_order_invariant():
    p_data, p_noise = random_tables(3, 5, seed=7)
    rows, classes = np.array([2, 0, 1]), np.array([4, 1, 0, 3, 2])
    moved = [table[rows][:, classes] for table in (p_data, p_noise)]
    assert theory.snr(*moved) == pytest.approx(theory.snr(p_data, p_noise), rel=1e-14)


# -- Theorem 2


def test_best_value_identity():
    p_data, _ = random_tables(3, 5, seed=8)
    # overlap 1 in every row
    assert theory.snr(p_data, p_data) == pytest.approx(1 / (3 * 3 * (5 - 1)), rel=1e-14)
    disjoint = np.array([[0.5, 0.5, 0.0, 0.0]])
    assert theory.snr(disjoint, disjoint[:, ::-1]) == pytest.approx(1 / 4)
    np.testing.assert_array_equal(theory.overlap(disjoint, disjoint[:, ::-1]), 0.0)


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
def test_any_change_of_the_best_noise_lowers_the_ratio(size):
    p_data, _ = random_tables(3, 6, seed=9)
    best = theory.snr(p_data, p_data)
    rng = np.random.default_rng(1)
    for _ in range(200):
        logits = np.log(p_data) + size * rng.normal(size=p_data.shape)
        p_noise = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert theory.snr(p_data, p_noise) < best


@pytest.mark.parametrize("seed", range(5))
def test_optimizer_recovers_the_data_distribution(seed):
    """A generic optimizer, over the logits of p_n, finds p_D as the best noise distribution."""
    p_data, start = random_tables(2, 5, seed=10 + seed)

    def inverse_snr(logits):
        table = logits.reshape(p_data.shape)
        p = np.exp(table - table.max(axis=1, keepdims=True))
        return 1.0 / theory.snr(p_data, p / p.sum(axis=1, keepdims=True))

    found = minimize(inverse_snr, np.log(start).ravel(), method="BFGS", options={"gtol": 1e-7}).x.reshape(
        p_data.shape
    )
    p_noise = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p_noise, p_data, atol=2e-3)  # a flat maximum, with gradients by differences
    assert np.abs(start - p_data).max() > 0.1


def test_theorem_is_about_one_negative():
    """With more negatives the covariance has another form, and noise other than p_D does better."""
    p_data = np.array([[0.85, 0.1, 0.05]])
    spread = 0.9 * p_data + 0.1 / 3
    assert theory.snr(p_data, spread) < theory.snr(p_data, p_data)
    best = theory_reference.snr_from_matrices(p_data, p_data, n_negatives=8)
    others = [
        theory_reference.snr_from_matrices(p_data, p, n_negatives=8) for p in (spread, 2 * p_data - spread)
    ]
    assert max(others) > best


# -- noise distributions on data with a hierarchy


@pytest.mark.parametrize("seed", [0, 1])
def test_tree_is_between_frequencies_and_truth(seed):
    """Many classes in a hierarchy with Zipf frequencies and few rows each, as in ICD-10-CM; p_D is known."""
    data = planted_hierarchy(6000, 500, 16, seed=seed, n_test=300, n_latent=12, noise_scale=0.8)
    p_data = np.exp(data.truth.log_prob_all(data.X_test))
    counts = np.bincount(data.y, minlength=500)
    tree = fit_tuned(data.X, data.y, n_classes=500).tree
    noises = {"uniform": UniformNoise(500), "frequency": FrequencyNoise(counts), "tree": TreeNoise(tree)}
    tables = {
        name: np.exp(noise.log_prob_all(data.X_test).astype(np.float64)) for name, noise in noises.items()
    }
    rows = theory.compare_noises(p_data, tables | {"p_D": p_data})
    for key in ("snr", "relative_snr", "overlap"):
        values = [getattr(row, key) for row in rows]
        assert values == sorted(values)
        assert len(set(values)) == 4
    uniform, frequency, tree_row, best = (row.overlap for row in rows)
    assert uniform < frequency < 0.2 < 0.4 < tree_row < 0.9  # far apart, and the tree is not the truth
    assert best == pytest.approx(1.0)
    assert [row.divergence for row in rows] == sorted((row.divergence for row in rows), reverse=True)
    assert rows[-1].divergence == pytest.approx(0.0, abs=1e-12)


# -- Theorem 1


@pytest.mark.parametrize("seed", range(3))
def test_minimising_the_loss_recovers_the_softmax_scores(seed):
    """From a random start, scores plus log p_n become log p_D, for any noise."""
    p_data, p_noise = random_tables(3, 6, seed=30 + seed)
    start = np.random.default_rng(seed).normal(size=p_data.size)

    def loss(flat):
        value, gradient = theory_reference.expected_loss(flat.reshape(p_data.shape), p_data, p_noise)
        return value, gradient.ravel()

    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x.reshape(p_data.shape)
    difference = found + np.log(p_noise) - np.log(p_data)
    # Gradients of 1e-9 over curvatures of 1e-3 at least.
    assert np.ptp(difference, axis=1).max() < 1e-5
    np.testing.assert_allclose(found, theory_reference.optimal_scores(p_data, p_noise), rtol=0, atol=1e-5)
    assert np.abs(found - np.log(p_data)).max() > 0.5  # without bias removal they are not


# -- errors


def test_zero_probabilities_are_limits():
    p_data = np.array([[0.6, 0.4, 0.0]])
    p_noise = np.array([[0.5, 0.0, 0.5]])
    tiny = 1e-12
    near = [np.maximum(table, tiny) / np.maximum(table, tiny).sum() for table in (p_data, p_noise)]
    assert theory.snr(p_data, p_noise) == pytest.approx(theory_reference.snr_from_matrices(*near), rel=1e-9)
    assert theory.compare_noises(p_data, {"a": p_noise})[0].divergence == np.inf


@pytest.mark.parametrize(
    ("p_data", "p_noise", "sentence"),
    [
        ([0.5, 0.5], [0.5, 0.5], r"p_data has shape \(2,\)"),
        ([[0.5, 0.5]], [0.5, 0.25, 0.25], r"and p_noise \(3,\)"),
        ([[0.5, 0.6]], [0.5, 0.5], r"Row 0 of p_data is no .* adds up to 1\.1"),
        ([[0.5, 0.5]], [-0.7, 1.7], r"Row 0 of p_noise is no .* its least number is -0\.7"),
        ([[np.nan, 1.0]], [0.5, 0.5], "Row 0 of p_data is no .* adds up to nan"),
    ],
)
def test_wrong_input_rejects(p_data, p_noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        theory.compare_noises(p_data, {"noise": p_noise})
