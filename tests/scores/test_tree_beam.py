"""Beam search down the label tree, against full tables of probabilities and against exact search."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import pairwise
from extremax.calibration import mix_uniform
from extremax.scores import TreeBeamSearch
from extremax.scores.base import SearchConfig
from extremax.storage.state import restore
from extremax.tree.noise import TreeNoise
from scorers import assert_same_ranking, make_problem, mirrored

NOISES = ["none", "frequency", "tree", "mixture"]


@pytest.fixture(scope="module")
def problem():
    return make_problem()


@pairwise(which=NOISES, form=["dense", "csr"], k=[1, 7, 310])
def test_beam_as_wide_as_the_tree_is_exact_search_identity(problem, which, form, k):
    noise = problem.noises()[which]
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    found = TreeBeamSearch(problem.tree).topk(problem.scorer(noise, 1.3), X, k, width=512)
    assert_same_ranking(*found, reference.log_softmax(problem.table(noise), 1.3))


@pytest.mark.parametrize("which", NOISES)
def test_narrow_beam_scores_its_candidates_matches_reference(problem, which):
    noise = problem.noises()[which]
    candidates, _ = problem.tree.candidates(problem.Z, 16)
    kept = np.full((60, 300), -np.inf)
    np.put_along_axis(kept, candidates, np.take_along_axis(problem.table(noise), candidates, axis=1), axis=1)
    found = TreeBeamSearch(problem.tree).topk(problem.scorer(noise), problem.X, 5, width=16)
    assert_same_ranking(*found, reference.log_softmax(kept))


def test_default_width_is_that_of_the_config_identity(problem):
    scorer = problem.scorer(TreeNoise(problem.tree))
    default = TreeBeamSearch(problem.tree, SearchConfig(tree_beam_width=16)).topk(scorer, problem.X, 5)
    given = TreeBeamSearch(problem.tree).topk(scorer, problem.X, 5, width=16)
    for a, b in zip(default, given, strict=True):
        np.testing.assert_array_equal(a, b)


def test_beam_is_at_least_k_wide(problem):
    scorer = problem.scorer(TreeNoise(problem.tree))
    narrow, wide = (TreeBeamSearch(problem.tree).topk(scorer, problem.X, 6, width=width) for width in (2, 6))
    np.testing.assert_array_equal(narrow[0], wide[0])
    assert (narrow[0] >= 0).all()
    # normalised over six candidates
    np.testing.assert_allclose(np.exp(narrow[1]).sum(axis=1), 1.0, atol=1e-5)


def test_beam_in_blocks_of_rows_invariant(problem):
    scorer = problem.scorer(TreeNoise(problem.tree))
    whole = TreeBeamSearch(problem.tree).topk(scorer, problem.X, 5)
    in_blocks = TreeBeamSearch(problem.tree, SearchConfig(beam_block_rows=7))
    for X in (problem.X, sparse.csr_matrix(problem.X)):
        labels, log_prob = in_blocks.topk(scorer, X, 5)
        np.testing.assert_array_equal(labels, whole[0])
        np.testing.assert_allclose(log_prob, whole[1], atol=1e-5)  # a sparse row is summed in another order


def test_another_tree_may_propose_the_candidates_identity(problem):
    """Log p_n is the noise's, not that of the tree that proposes."""
    scorer = problem.scorer(TreeNoise(problem.tree))
    other = TreeBeamSearch(mirrored(problem.tree)).topk(scorer, problem.X, 5, width=512)
    own = TreeBeamSearch(problem.tree).topk(scorer, problem.X, 5, width=512)
    np.testing.assert_array_equal(other[0], own[0])
    np.testing.assert_allclose(other[1], own[1], atol=1e-5)  # log p_n summed in another order


def test_uniform_mixing_of_a_beam_identity(problem):
    noise = TreeNoise(problem.tree)
    search = TreeBeamSearch(problem.tree)
    plain = search.topk(problem.scorer(noise), problem.X, 3, width=8)
    mixed = search.topk(problem.scorer(noise, 1.0, 0.1), problem.X, 3, width=8)
    np.testing.assert_array_equal(mixed[0], plain[0])
    np.testing.assert_array_equal(mixed[1], mix_uniform(plain[1], 0.1, 300))
    assert (mixed[1] != plain[1]).all()


def test_tree_beam_is_restored_from_its_state_identity(problem):
    scorer = problem.scorer(problem.noises()["mixture"])
    again = restore("search", TreeBeamSearch(problem.tree).state())
    for a, b in zip(
        again.topk(scorer, problem.X, 5, width=8),
        TreeBeamSearch(problem.tree).topk(scorer, problem.X, 5, width=8),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
