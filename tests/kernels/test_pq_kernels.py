"""Kernels of product quantization, one by one, against numpy and against their definitions.

Most approximate scores here are small whole numbers over powers of two: float32 holds them exactly in
whatever order they are summed, so that ties are ties and a comparison has one answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import reference
from coverings import in_turn
from extremax.kernels import pq as kernels
from extremax.kernels.compile import njit
from extremax.kernels.project import project_rows
from extremax.kernels.simd import LANES, MOST_ENTRY, ROWS_AT_ONCE, table_sums
from extremax.scores.dense import DenseWeights
from extremax.scores.pq import PQSearch
from extremax.tuned import PQConfig

PLACES = [2 * (lane % 16) + lane // 16 for lane in range(LANES)]  # of a class's byte among those of its block
RANGES = [(0, 5), (1, 4), (2, 5), (4, 5), (3, 3)]  # first block, last


@njit
def sum_entries(codes, start, stop, tables, group, sums, highest):
    table_sums(codes, start, stop, tables, group, sums, highest)


@njit
def lowest_bits(masks, out):
    for i in range(masks.shape[0]):
        out[i] = kernels.trailing_zeros(masks[i])


def expected_sums(codes, tables):
    """Sums of the entries that the codes pick, (groups, rows, blocks, lanes)."""
    picks = codes[:, :, PLACES].astype(np.int64)
    total = np.zeros((*tables.shape[:2], len(codes), LANES), np.int64)
    for pair in range(codes.shape[1]):
        total += tables[:, :, 2 * pair][:, :, picks[:, pair] % 16]
        total += tables[:, :, 2 * pair + 1][:, :, picks[:, pair] // 16]
    return total


def some_tables(kind, shape, rng):
    if kind == "either end":  # the byte above a small sum is a large one
        return (MOST_ENTRY * rng.integers(0, 2, shape)).astype(np.uint8)
    low, high = {"all 31": (MOST_ENTRY, MOST_ENTRY), "all 0": (0, 0), "any": (0, MOST_ENTRY)}[kind]
    return rng.integers(low, high + 1, shape).astype(np.uint8)


# -- sums of table entries


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("pairs", [4, 8, 28])
@pytest.mark.parametrize("kind", ["any", "either end", "all 31", "all 0"])
def test_table_sums_match_reference(kind, pairs):
    rng = np.random.default_rng(pairs)
    codes = rng.integers(0, 256, (5, pairs, LANES)).astype(np.uint8)
    tables = some_tables(kind, (2, ROWS_AT_ONCE, 2 * pairs, 16), rng)
    expected = expected_sums(codes, tables)
    if kind == "all 31":
        assert np.all(expected == 31 * 2 * pairs)
    for start, stop in RANGES:
        for group in range(2):
            sums, highest = (
                np.full((ROWS_AT_ONCE, 6, LANES), 7, np.uint16),
                np.full((ROWS_AT_ONCE, 6), -7, np.int32),
            )
            sum_entries(codes, start, stop, tables, group, sums, highest)
            own = expected[group][:, start:stop]
            n = own.shape[1]
            np.testing.assert_array_equal(sums[:, :n], own)
            np.testing.assert_array_equal(highest[:, :n], own.max(axis=2))
            assert np.all(sums[:, n:] == 7)
            assert np.all(highest[:, n:] == -7)


@pytest.mark.small
def test_table_sums_follow_the_documented_layout():
    """One class has a code that picks another entry than the codes of the others."""
    tables = np.zeros((1, ROWS_AT_ONCE, 8, 16), np.uint8)
    tables[0, 2, 5, 9] = 1  # the second subvector of pair 2
    for place in range(LANES):
        codes = np.zeros((1, 4, LANES), np.uint8)
        codes[0, 2, place] = 9 << 4
        sums, highest = np.zeros((ROWS_AT_ONCE, 1, LANES), np.uint16), np.zeros((ROWS_AT_ONCE, 1), np.int32)
        sum_entries(codes, 0, 1, tables, 0, sums, highest)
        assert np.argwhere(sums).tolist() == [[2, 0, place // 2 + 16 * (place % 2)]]
        assert highest[:, 0].tolist() == [0, 0, 1, 0]


@pytest.mark.reference
@pytest.mark.small
def test_trailing_zeros_match_reference():
    masks = np.array([1, 2, 3, 12, 1 << 16, 1 << 31, 0xFFFFFFFF, 0xFFFF0000], np.uint32)
    out = np.empty(len(masks), np.int64)
    lowest_bits(masks, out)
    assert out.tolist() == [0, 1, 0, 2, 16, 31, 0, 16]


def seeded_sums():
    """Sums of seeded codes and tables by whichever variant this process has, one after the other."""
    parts = []
    for seed, (kind, pairs) in enumerate([("any", 28), ("either end", 8), ("either end", 56)]):
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 256, (70, pairs, LANES)).astype(np.uint8)
        tables = some_tables(kind, (2, ROWS_AT_ONCE, 2 * pairs, 16), rng)
        for group in range(2):
            sums, highest = (
                np.zeros((ROWS_AT_ONCE, 70, LANES), np.uint16),
                np.zeros((ROWS_AT_ONCE, 70), np.int32),
            )
            sum_entries(codes, 0, 70, tables, group, sums, highest)
            parts += [sums.ravel().astype(np.int64), highest.ravel().astype(np.int64)]
    return np.concatenate(parts)


def in_another_process(code, path, **settings):
    """Run `code`, which saves an array to `path`, with numba set as given and nothing of it cached;
    returns the array.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = plain | {"NUMBA_CACHE_DIR": str(path.parent / "cache")} | settings
    folders = [str(Path(__file__).parent), str(Path(reference.__file__).parent)]
    code = f"import sys; sys.path[:0] = {folders!r}\nimport numpy as np\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return np.load(path)


@pytest.mark.invariance
def test_loop_and_shuffles_have_the_same_sums_same_everywhere(tmp_path):
    code = """
import test_pq_kernels as tests
from extremax.kernels import simd
assert hasattr(simd._block_sums, "py_func")  # the loop
np.save(sys.argv[1], tests.seeded_sums())
"""
    found = in_another_process(code, tmp_path / "sums.npy", NUMBA_CPU_NAME="generic")
    np.testing.assert_array_equal(seeded_sums(), found)


# -- codes and tables


def named_centroids(codes, n_classes):
    """The code of each subvector of each class, (n_classes, subvectors), by the documented layout."""
    out = np.empty((n_classes, 2 * codes.shape[1]), np.int64)
    for block in range(-(-n_classes // LANES)):
        for place in range(LANES):
            y = LANES * block + place // 2 + 16 * (place % 2)
            if y < n_classes:
                out[y, 0::2], out[y, 1::2] = codes[block, :, place] % 16, codes[block, :, place] // 16
    return out


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("size", [1, 3])
def test_codes_name_the_nearest_centroids_matches_reference(size):
    rng = np.random.default_rng(size)
    n, pairs = 75, 4
    directions = rng.normal(size=(n, 2 * pairs * size)).astype(np.float32)
    centroids = rng.normal(size=(16, size)).astype(np.float32)
    codes, alignment = np.zeros((3, pairs, LANES), np.uint8), np.full(n, np.nan, np.float32)
    for first, last in ((0, 21), (21, 75)):  # the second part begins within a block
        kernels.encode(directions[first:last], centroids, first, codes, alignment[first:last])
    named = named_centroids(codes, 96)
    assert not named[n:].any()  # nothing past the last class
    subvectors = directions.reshape(n, 2 * pairs, 1, size).astype(np.float64)
    far = np.square(subvectors - centroids).sum(axis=3)
    chosen = np.take_along_axis(far, named[:n, :, None], axis=2)[..., 0]
    # ties within the rounding of float32
    np.testing.assert_allclose(chosen, far.min(axis=2), rtol=0, atol=1e-5)
    assert len(np.unique(named[:n])) > 12
    products = np.sum(subvectors[:, :, 0] * centroids[named[:n]], axis=(1, 2))
    np.testing.assert_allclose(alignment, products, rtol=0, atol=1e-5)  # a sum of 24 products in float32


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("n", [1, 7, 70])  # a tile is 32 rows
def test_rotated_rows_match_reference(n):
    rng = np.random.default_rng(n)
    X, rotation, shift = (rng.normal(size=shape).astype(np.float32) for shape in ((n, 19), (12, 19), 12))
    out = np.full((n, 12), np.nan, np.float32)
    project_rows(X, rotation, shift, out)
    # sums of 19 in float32
    np.testing.assert_allclose(out, X.astype(np.float64) @ rotation.T - shift, rtol=0, atol=1e-5)
    alone = np.empty((1, 12), np.float32)
    for i in range(n):
        project_rows(X[i : i + 1], rotation, shift, alone)
        np.testing.assert_array_equal(alone[0], out[i])


def made_tables(rows, centroids, n_tables):
    n_places = -(-len(rows) // ROWS_AT_ONCE) * ROWS_AT_ONCE
    tables = np.full((n_places, n_tables, 16), 99, np.uint8)
    steps, offsets, squares = (np.full(n_places, np.nan, np.float32) for _ in range(3))
    with np.errstate(all="ignore"):  # interpreted code warns of rows that are no numbers
        kernels.make_tables(rows, centroids, tables, steps, offsets, squares)
    return tables, steps, offsets, squares


@pytest.mark.reference
@pytest.mark.small
def test_tables_match_reference():
    rng = np.random.default_rng(0)
    n, n_tables, size = 6, 8, 3
    centroids = rng.normal(size=(16, size)).astype(np.float32)
    rows = (rng.normal(size=(n, size * n_tables + 4)) * 10.0 ** rng.integers(-4, 5, (n, 1))).astype(
        np.float32
    )
    rows[:, -4:] = 1e20  # no part of z
    tables, steps, offsets, squares = made_tables(rows, centroids, n_tables)
    z = rows[:, :-4].astype(np.float64)
    subvectors = z.reshape(n, size, n_tables).transpose(
        0, 2, 1
    )  # the first numbers of all subvectors come first
    products = subvectors @ centroids.T.astype(np.float64)
    lowest = products.min(axis=2)
    widest = (products.max(axis=2) - lowest).max(axis=1)
    np.testing.assert_allclose(steps[:n], widest / 31, rtol=1e-5)  # differences of float32
    np.testing.assert_allclose(offsets[:n] / widest, lowest.sum(axis=1) / widest, rtol=0, atol=1e-5)
    np.testing.assert_allclose(squares[:n], np.square(z).sum(axis=1), rtol=1e-5)
    exact = (products - lowest[..., None]) / (widest / 31)[:, None, None]
    assert np.abs(tables[:n] - exact).max() < 0.5 + 1e-4  # to the nearest, but for rounding in float32
    assert tables[:n].max(axis=(1, 2)).tolist() == [31] * n
    assert not tables[:n].min(axis=2).any()
    picks = rng.integers(0, 16, (500, n_tables))
    subvector = np.arange(n_tables)
    for i in range(n):
        approximate = (
            tables[i].astype(np.int64)[subvector, picks].sum(axis=1) * np.float64(steps[i]) + offsets[i]
        )
        errors = np.abs(approximate - products[i][subvector, picks].sum(axis=1)) / steps[i]
        assert errors.max() < 0.5 * n_tables
        # as roundings that have nothing to do with each other add up
        assert errors.mean() < 0.3 * np.sqrt(n_tables)
    for filled in (tables, steps, offsets, squares):
        np.testing.assert_array_equal(filled[n:], [filled[n - 1]] * (len(filled) - n))


@pytest.mark.small
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e36, 0.0])
@pytest.mark.parametrize("where", [slice(7, 8), slice(None)])
def test_rows_without_tables_say_so(value, where):
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(16, 3)).astype(np.float32)
    rows = rng.normal(size=(3, 28)).astype(np.float32)
    if value == 0.0:
        rows[1] = 0.0
    rows[1, where] = value
    tables, steps, offsets, _ = made_tables(rows, centroids, 8)
    assert (steps[1], offsets[1]) == (0.0, 0.0)
    assert not tables[1].any()
    for i, others in ((0, rows[:1]), (2, rows[2:])):  # the rows beside it are as they would be alone
        for got, alone in zip((tables, steps, offsets), made_tables(others, centroids, 8), strict=False):
            np.testing.assert_array_equal(got[i], alone[0])
    assert np.all(steps[2:] > 0.0)


# -- search among approximate scores


class Case:
    """A search in which all approximate scores, (rows, places), are exact in float32."""

    def __init__(self, n_blocks=37, n_rows=6, n_classes=None, seed=0):
        rng = np.random.default_rng(seed)
        self.n_rows, self.n_groups, pairs = n_rows, -(-n_rows // ROWS_AT_ONCE), 4
        self.n_classes = LANES * n_blocks - 13 if n_classes is None else n_classes
        self.codes = rng.integers(0, 256, (n_blocks, pairs, LANES)).astype(np.uint8)
        self.tables = some_tables("any", (self.n_groups, ROWS_AT_ONCE, 2 * pairs, 16), rng)
        shape = (self.n_groups, ROWS_AT_ONCE)
        self.steps = (2.0 ** rng.integers(-5, -2, shape)).astype(np.float32)
        # so that sums are of either sign
        self.offsets = (-rng.integers(60, 260, shape) / 16).astype(np.float32)
        self.factors = (rng.integers(1, 9, (n_blocks, LANES)) / 4).astype(np.float32)
        self.bases = (rng.integers(-80, 80, (n_blocks, LANES)) / 8).astype(np.float32)
        # of some blocks no class is any good
        self.bases += (rng.integers(-10, 10, (n_blocks, 1))).astype(np.float32)
        self.factors.reshape(-1)[self.n_classes :] = 0.0
        self.bases.reshape(-1)[self.n_classes :] = -np.inf
        self.bounds = np.zeros((2, -(-n_blocks // kernels.CHUNK) * kernels.CHUNK), np.float32)
        self.bounds[1] = -np.inf
        self.bounds[0, :n_blocks], self.bounds[1, :n_blocks] = (
            self.factors.max(axis=1),
            self.bases.max(axis=1),
        )
        rows = (self.steps[..., None, None], self.offsets[..., None, None])
        self.all_approximate = (
            expected_sums(self.codes, self.tables) * rows[0] + rows[1]
        ) * self.factors + self.bases
        assert np.array_equal(self.all_approximate, self.all_approximate.astype(np.float32))
        self.approximate = self.all_approximate.reshape(shape[0] * shape[1], -1)[:n_rows, : self.n_classes]

    def given(self, stride=1):
        """All blocks, or one in so many."""
        parts = (np.ascontiguousarray(array[::stride]) for array in (self.codes, self.factors, self.bases))
        bounds = np.ascontiguousarray(self.bounds[:, ::stride])
        return kernels.Blocks(*parts, bounds), kernels.Tables(self.tables, self.steps, self.offsets)

    def set_thresholds(self, stride, kept, inverse_temperature):
        thresholds = np.full(self.steps.shape, np.nan, np.float32)
        inverse = np.array([3.0, inverse_temperature], np.float32)  # tails at two temperatures
        tails = np.full((2, *self.steps.shape), np.nan, np.float32)
        kernels.set_thresholds(*self.given(stride), kept, inverse, thresholds, tails)
        return thresholds, tails[1]

    def find(self, thresholds, most):
        """Find with thresholds of the rows; rows that only fill the last group would find everything."""
        filled = np.full(self.steps.shape, -np.inf, np.float32)
        filled.reshape(-1)[: self.n_rows] = thresholds
        found, counts = np.full((self.n_rows, most), -9, np.int32), np.full(self.n_rows, -9, np.int32)
        kernels.find_classes(*self.given(), filled, found, counts)
        return found, counts


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize(
    ("n_blocks", "stride", "kept"),
    [(5, 1, 1), (5, 1, 10), (37, 1, 33), (37, 5, 8), (33, 16, 2), (33, 16, 40), (6, 3, 63)],
)
def test_thresholds_match_reference(n_blocks, stride, kept):
    case = Case(n_blocks=n_blocks, seed=stride + kept)
    inverse_temperature = 0.4
    thresholds, tails = case.set_thresholds(stride, kept, inverse_temperature)
    looked = case.all_approximate[:, :, ::stride].reshape(*case.steps.shape, -1)
    np.testing.assert_array_equal(thresholds, np.sort(looked, axis=2)[:, :, -kept])
    below = np.where(
        looked < thresholds[..., None],
        np.exp(inverse_temperature * (looked - thresholds[..., None].astype(np.float64))),
        0,
    )
    np.testing.assert_allclose(tails, below.sum(axis=2), rtol=1e-4)  # sums of up to 1184 terms in float32
    assert np.all(tails > 0.0)


@pytest.mark.small
def test_too_few_classes_are_all_found_without_padding():
    case = Case(n_blocks=3, seed=1)  # the last block, which is looked at, has 19 classes
    for stride, n_real in ((1, 83), (2, 51)):
        thresholds, _ = case.set_thresholds(stride, n_real, 1.0)
        looked = case.all_approximate[:, :, ::stride].reshape(*case.steps.shape, -1)[..., :n_real]
        np.testing.assert_array_equal(thresholds, looked.min(axis=2))
        for kept in (n_real + 1, 96, 200):
            thresholds, tails = case.set_thresholds(stride, kept, 1.0)
            assert np.all((thresholds < -1e38) & np.isfinite(thresholds))
            assert not tails.any()
            found, counts = case.find(thresholds.reshape(-1)[:6], 96)
            assert counts.tolist() == [83] * 6
            np.testing.assert_array_equal(found[:, :83], [np.arange(83)] * 6)


@pytest.mark.reference
@pytest.mark.small
@in_turn(n_rows=[1, 4, 6, 7], n_blocks=[1, 32, 37])
def test_found_classes_match_reference(n_blocks, n_rows):
    case = Case(n_blocks=n_blocks, n_rows=n_rows, seed=n_rows)
    for rank in (0, 5, 18):  # a score that occurs: it reaches itself
        thresholds = np.sort(case.approximate, axis=1)[:, -1 - rank]
        found, counts = case.find(thresholds, 60)
        for row, own, count, threshold in zip(case.approximate, found, counts, thresholds, strict=True):
            expected = np.flatnonzero(row >= threshold)
            assert rank < count == len(expected) <= 60
            assert own[:count].tolist() == expected.tolist()
            assert np.all(own[count:] == -9)


@pytest.mark.small
def test_found_classes_beyond_the_room_are_counted():
    case = Case(n_blocks=37, seed=3)
    thresholds = np.sort(case.approximate, axis=1)[:, [-3, -400, -40, -41, -1000, -1]][
        np.arange(6), np.arange(6)
    ]
    expected = [
        np.flatnonzero(row >= threshold) for row, threshold in zip(case.approximate, thresholds, strict=True)
    ]
    for most in (1, 40, 41):
        found, counts = case.find(thresholds, most)
        assert counts.tolist() == [len(own) for own in expected]
        assert all(
            got[: len(own)].tolist() == own[:most].tolist() for got, own in zip(found, expected, strict=True)
        )


@pytest.mark.small
def test_thresholds_out_of_reach_find_nothing():
    case = Case(n_blocks=33, seed=4)
    best = case.approximate.max(axis=1)
    for thresholds in (best + 1 / 64, np.full(6, np.inf), np.full(6, np.nan)):
        assert not case.find(thresholds, 4)[1].any()


@pytest.mark.parametrize("stride", [1, 3])
def test_as_many_classes_as_kept_reach_their_threshold(stride):
    """Approximate scores that float32 rounds are rounded in the same way wherever they are compared."""
    rng = np.random.default_rng(0)
    case = Case(n_blocks=40, n_rows=800)
    shape, classes = case.steps.shape, case.factors.shape
    case.steps, case.offsets = (
        rng.uniform(0.01, 1, shape).astype(np.float32),
        rng.normal(-90, 30, shape).astype(np.float32),
    )
    case.factors = rng.uniform(0.1, 3, classes).astype(np.float32)
    case.bases = rng.normal(size=classes).astype(np.float32)
    case.bounds[0, :40], case.bounds[1, :40] = case.factors.max(axis=1), case.bases.max(axis=1)
    for kept in (1, 10):
        thresholds, _ = case.set_thresholds(stride, kept, 1.0)
        found, counts = case.find(thresholds.reshape(-1), LANES * 40)
        looked = [
            np.sum(own[:count] // LANES % stride == 0) for own, count in zip(found, counts, strict=True)
        ]
        assert min(looked) >= kept
        assert np.mean(looked) < kept + 0.1  # and no more, but for ties


# -- exact scores of the classes found


def some_found(n_rows, n_classes, most, seed):
    """Places in order for each row, and counts, some of them above `most`; places 3 and 4 are in no list."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 3, n_rows).astype(np.int32)
    counts[:2] = 0, most + 2
    wanted = np.setdiff1d(np.arange(n_classes), [3, 4])
    found = np.sort([rng.choice(wanted, most, replace=False) for _ in range(n_rows)], axis=1).astype(np.int32)
    for own, count in zip(found, counts, strict=True):
        own[count:] = 10**9  # not to be looked at
    return found, counts


def pairs_of(found, counts):
    """The rows, slots and places of all that was found and kept."""
    rows, slots = np.nonzero(np.arange(found.shape[1]) < counts[:, None])
    return rows, slots, found[rows, slots]


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize(("n_rows", "n_classes", "most"), [(1, 9, 7), (2, 9, 7), (23, 40, 12), (23, 15, 1)])
def test_listed_rows_match_reference(n_rows, n_classes, most):
    found, counts = some_found(n_rows if n_rows > 1 else 2, n_classes, most, seed=most)
    found, counts = found[-n_rows:], counts[-n_rows:]
    rows, slots, places = pairs_of(found, counts)
    ends, listed = np.full(n_classes, -9, np.int64), np.full(len(rows), -9, np.int32)
    kernels.list_rows(found, counts, ends, listed)
    starts = np.concatenate([[0], ends[:-1]])
    assert ends[-1] == len(rows)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        assert listed[start:end].tolist() == (rows * most + slots)[places == place].tolist()


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("n_features", [5, 40])
def test_listed_scores_match_reference(n_features):
    rng = np.random.default_rng(n_features)
    n_rows, n_classes, most, scale = 23, 40, 12, np.float32(0.75)
    X, weights, biases = (
        rng.normal(size=s).astype(np.float32) for s in ((n_rows, n_features), (50, n_features), 50)
    )
    order = rng.permutation(50)[:n_classes].astype(np.int32)
    found, counts = some_found(n_rows, n_classes, most, seed=1)
    rows, slots, places = pairs_of(found, counts)
    # rows of a class, four at a time
    assert {1, 2, 3, 4, 5} <= set(np.bincount(places, minlength=n_classes)) | {4}

    def scored(rows_taken):
        found_there, counts_there = found[rows_taken].copy(), counts[rows_taken].copy()
        n_listed = int(np.minimum(counts_there, most).sum())
        ends, listed = np.empty(n_classes, np.int64), np.empty(n_listed, np.int32)
        kernels.list_rows(found_there, counts_there, ends, listed)
        scores = np.full(found_there.shape, np.nan, np.float32)
        kernels.score_listed(X[rows_taken].copy(), ends, listed, most, order, weights, biases, scale, scores)
        return scores

    scores = scored(slice(None))
    labels = order[places]
    expected = scale * np.sum(X[rows].astype(np.float64) * weights[labels], axis=1) + biases[labels]
    # sums of 40 products in float32
    np.testing.assert_allclose(scores[rows, slots], expected, rtol=0, atol=1e-5)
    assert np.isnan(scores).sum() == scores.size - len(rows)
    # which rows come together, and in which order
    for some in (slice(1, 2), slice(5, 8), slice(22, None, -1)):
        np.testing.assert_array_equal(scored(some), scores[some])


# -- quality of the approximate scores

N_FEATURES, N_CLASSES, SIZE = 240, 3000, 5  # 48 subvectors of five numbers


@pytest.fixture(scope="module")
def approximated():
    """True scores less what all classes have in common, approximate ones, the latter without u'.z, and the
    centroids.
    """
    rng = np.random.default_rng(0)
    weights = DenseWeights.zeros(N_CLASSES, N_FEATURES, feature_scale=0.1)
    weights.weights[:] = rng.normal(size=weights.weights.shape) + rng.normal(size=N_FEATURES)
    weights.biases[:] = rng.normal(size=N_CLASSES)
    # features of unequal variance
    mixed = rng.normal(size=(N_FEATURES, N_FEATURES)) * np.geomspace(1, 0.1, N_FEATURES) / 4
    X = (rng.normal(size=(2500, N_FEATURES)) @ mixed + rng.normal(size=N_FEATURES)).astype(np.float32)
    without_width = PQConfig(min_width_rows=len(X))
    search = PQSearch.fit(X[:2100], weights, held_out=X[:500], n_threads=1, config=without_width)
    rows = X[2100:].astype(np.float64)
    rotated = rows @ search.rotation.T.astype(np.float64) - search.shift
    named = named_centroids(search.codes, N_CLASSES)
    subvectors = rotated[:, :-4].reshape(len(rows), SIZE, -1).transpose(0, 2, 1).reshape(len(rows), -1)
    products = subvectors @ search.centroids.astype(np.float64)[named].reshape(N_CLASSES, -1).T
    factors, bases = (a.reshape(-1)[:N_CLASSES].astype(np.float64) for a in (search.factors, search.bases))
    order = search.order
    scores = 0.1 * rows @ weights.weights[order].T.astype(np.float64) + weights.biases[order]
    return scores - rotated[:, -4:-3], products * factors + bases, bases, search.centroids


def distortion(centroids):
    """Mean squared distance of normal vectors to their nearest centroids, over their own."""
    sample = np.random.default_rng(1).normal(size=(20_000, SIZE))
    centroids = centroids.astype(np.float64)
    far = np.square(sample).sum(axis=1)[:, None] - 2 * sample @ centroids.T + np.square(centroids).sum(axis=1)
    return far.min(axis=1).mean() / SIZE


def test_centroids_are_near_to_normal_vectors(approximated):
    assert 2 ** (-2 * 4 / SIZE) < distortion(approximated[3]) < 0.44  # no 16 points are nearer than the first


def test_approximate_scores_of_the_best_classes_are_right_on_average(approximated):
    scores, approximate, bases, _ = approximated
    best = np.argsort(-scores, axis=1)[:, :10]
    at = (np.arange(len(scores))[:, None], best)
    errors = (approximate - scores)[at].mean(axis=1)
    spread = errors.std(ddof=1) / np.sqrt(len(errors))
    height = (scores[at] - bases[best]).mean()
    assert abs(errors.mean()) < 4 * spread
    # centroids are shorter than what they approximate: without factors, scores would lose two fifths
    assert 4 * spread < 0.05 * height
    slope = np.mean((approximate[at] - bases[best]) * (scores[at] - bases[best])) / np.mean(
        np.square(scores[at] - bases[best])
    )
    assert slope == pytest.approx(1.0, abs=0.05)


def test_errors_of_approximate_scores_are_those_of_the_centroids(approximated):
    scores, approximate, bases, centroids = approximated
    relative = (approximate - scores).std() / (scores - bases).std()
    noise = distortion(centroids)
    assert relative == pytest.approx(np.sqrt(noise / (1 - noise)), rel=0.1)
