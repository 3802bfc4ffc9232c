"""Compiled code: its cache on disk, and kernels that users extend by their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import extremax
from extremax.kernels import compile as compile_module
from extremax.kernels.compile import JIT_DISABLED, by_class, njit
from extremax.kernels.math import sigmoid32, softplus32
from extremax.kernels.row_losses import Logistic, negative_sampling, register_loss
from extremax.kernels.row_training import Pairs, Step
from extremax.kernels.row_training import train as train_kernel
from extremax.kernels.row_updates import ModelArrays
from extremax.solvers.negative_sampling import batch_ends, train_batches

needs_compiler = pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled, so nothing is cached")

# -- the cache on disk

KERNEL = """
import numpy as np
from extremax.kernels.compile import njit
from extremax.kernels.math import exp32

@njit
def total(x):
    s = 0.0
    for i in range(x.size):
        s += exp32(x[i])
    return s

if __name__ == "__main__":
    import kernel
    value = kernel.total(np.zeros(5, dtype=np.float32))
    hits = sum(kernel.total.stats.cache_hits.values())
    print(value, hits)
"""


# A module that is loaded again has a kernel that has not looked into the cache yet.
CUT = """
import importlib
from pathlib import Path
import numpy as np
import kernel

for kind, parts in (("nbi", (0.0, 0.5)), ("nbc", (0.01, 0.999))):
    for part in parts:
        (path,) = Path().rglob(f"*.{kind}")
        content = path.read_bytes()
        path.write_bytes(content[: int(part * len(content))])
        importlib.reload(kernel)
        print(kernel.total(np.zeros(5, dtype=np.float32)), sum(kernel.total.stats.cache_hits.values()))
for path in (*Path().rglob("*.nbi"), *Path().rglob("*.nbc")):
    path.write_bytes(bytes(len(path.read_bytes())))
for _ in range(2):  # what the first one writes, the second one finds
    importlib.reload(kernel)
    print(kernel.total(np.zeros(5, dtype=np.float32)), sum(kernel.total.stats.cache_hits.values()))
"""


def run_file(folder: Path, name: str = "kernel.py", warns: bool = False, **environment: str) -> list[str]:
    """Run a file of `folder`, where a copy of the kernels is, and return the words it prints.

    It must warn of a missing cache once, or not at all.
    """
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    code = f"import runpy; runpy.run_path({name!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=folder,
        env={**cleared, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("set NUMBA_CACHE_DIR to a folder") == warns
    return done.stdout.split()


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """A folder with the kernels, which import nothing else of the package, and KERNEL."""
    source = Path(compile_module.__file__).parent
    (tmp_path / "extremax").mkdir()
    (tmp_path / "extremax" / "__init__.py").write_text("")
    shutil.copytree(source, tmp_path / "extremax" / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


def cache_files(folder: Path, pattern: str = "*") -> list[Path]:
    return [*folder.rglob(f"{pattern}.nbi"), *folder.rglob(f"{pattern}.nbc")]


@needs_compiler
def test_second_process_finds_the_compiled_kernel_and_a_damaged_one_is_compiled_again(
    package_copy: Path,
) -> None:
    """Cut off in four places, then of zeros, as some file systems leave a file after a crash."""
    assert run_file(package_copy) == ["5.0", "0"]
    assert cache_files(package_copy)
    assert run_file(package_copy) == ["5.0", "1"]
    (package_copy / "cut.py").write_text(CUT)
    assert run_file(package_copy, "cut.py") == ["5.0", "0"] * 5 + ["5.0", "1"]


@needs_compiler
def test_kernel_runs_where_no_folder_can_be_written(package_copy: Path) -> None:
    # A file in the place of each cache folder stops even root, whom permissions would not.
    (package_copy / "__pycache__").write_text("")
    nowhere = {
        "HOME": "/dev/null/home",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "NUMBA_CACHE_DIR": "/dev/null/numba",
    }
    assert run_file(package_copy, warns=True, **nowhere) == ["5.0", "0"]
    assert not cache_files(package_copy)


def test_package_is_the_one_under_test() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    assert Path(extremax.__file__).parent == root / "src" / "extremax"


# -- losses that users register


class Doubled(NamedTuple):
    """Settings of `doubled`: the loss of the positive, `factor` times."""

    factor: np.float32


@njit
def doubled(settings, pairs, start, stop):
    for i in range(start, stop):
        for j in range(pairs.scores.shape[1]):
            pairs.coefficients[i, j] = 0.0
        score = pairs.scores[i, 0]
        pairs.coefficients[i, 0] = -settings.factor * pairs.row_weight[i] * sigmoid32(-score)
        pairs.losses[i] = settings.factor * pairs.row_weight[i] * softplus32(-score)


register_loss(Doubled, doubled)


def train(settings, n=40, n_negatives=0):
    """Losses of the rows and the model after one pass of SGD from zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    labels = rng.integers(5, size=(n, 1 + n_negatives)).astype(np.int32)
    zeros = np.zeros(labels.shape, np.float32)
    pairs = Pairs(
        rows=np.arange(n),
        labels=labels,
        log_base=zeros,
        log_noise=zeros,
        row_weight=np.ones(n, np.float32),
        scores=np.empty_like(zeros),
        coefficients=np.empty_like(zeros),
        losses=np.empty(n),
        eta=np.empty(n, np.float32),
    )
    model = ModelArrays(
        np.zeros((5, 3), np.float32),
        np.zeros(5, np.float32),
        np.zeros((5, 0), np.float32),
        np.zeros(5, np.float32),
    )
    step = Step(settings, np.float32(1.0), np.float32(0.1))
    train_batches(X, pairs, batch_ends(n, 8), model, step, 1)
    return pairs.losses, model


@pytest.mark.small
@pytest.mark.identity
def test_registered_loss_trains_as_a_built_in_one() -> None:
    # Without negatives and penalty, negative sampling is the loss of the positive.
    losses, model = train(Doubled(np.float32(1.0)))
    expected_losses, expected = train(negative_sampling(0.0, 0))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)  # two forms of softplus in float32
    np.testing.assert_allclose(model.weights, expected.weights, rtol=1e-5, atol=1e-7)
    assert model.weights.any()
    twice, _ = train(Doubled(np.float32(2.0)), n=8)  # one minibatch, from zero
    np.testing.assert_allclose(twice, 2.0 * losses[:8], rtol=1e-6)


@pytest.mark.small
@pytest.mark.error
def test_losses_without_registration_or_of_no_named_tuple_reject() -> None:
    class Unknown(NamedTuple):
        penalty: np.float32

    with pytest.raises(TypeError, match="no kernel is registered for Unknown; known are AugmentReduce"):
        train(Unknown(np.float32(0.0)))
    with pytest.raises(TypeError, match="int is no named tuple"):
        register_loss(int, doubled)
    with pytest.raises(ValueError, match="Logistic has a loss already"):
        register_loss(Logistic, doubled)
    register_loss(Doubled, doubled)  # the same again


@pytest.mark.small
def test_by_class_finds_entries_that_are_added_later() -> None:
    class First(NamedTuple):
        x: float

    class Second(NamedTuple):
        x: float

    def one(settings):
        return settings.x + 1.0

    def two(settings):
        return settings.x + 2.0

    # helpers are compiled for kernels, functions for Python: both are written here without the cache
    plain = one, two
    if not JIT_DISABLED:
        import numba

        plain = numba.njit(one), numba.njit(two)
    table = {First: plain[0]}
    chosen = by_class(table)

    def call(settings):
        return chosen(settings)

    compiled = call if JIT_DISABLED else numba.njit(call)
    assert compiled(First(0.0)) == 1.0
    table[Second] = plain[1]
    assert compiled(Second(0.0)) == 2.0
    assert compiled(First(0.0)) == 1.0


OWN_LOSS = """
    from typing import NamedTuple
    from extremax.kernels.compile import njit
    from extremax.kernels.row_losses import register_loss

    class Constant(NamedTuple):
        value: float

    @njit
    def constant(settings, pairs, start, stop):
        pairs.losses[start] = {value}

    register_loss(Constant, constant)
"""
# In the package, as the training kernels are, but compiled in a second.
LOOP = """
    from extremax.kernels.compile import njit_extensible
    from extremax.kernels.row_losses import coefficients_of

    @njit_extensible
    def loop(settings, pairs):
        coefficients_of(settings, pairs, 0, 1)
"""
RUN_LOOP = """
    import numpy as np
    from extremax.kernels.loop import loop
    from extremax.kernels.row_losses import negative_sampling
    from extremax.kernels.row_training import Pairs

    def run(settings):
        f, table = np.float32, np.zeros((1, 1), np.float32)
        pairs = Pairs(
            np.zeros(1, np.int64), np.zeros((1, 1), np.int32), table, table, np.ones(1, f), table.copy(),
            table.copy(), np.empty(1), np.empty(1, f),
        )
        loop(settings, pairs)
        print(round(float(pairs.losses[0]), 3))

    if __name__ == "__main__":
        run(negative_sampling(0.0, 0))
        {more}
"""


@needs_compiler
def test_registered_losses_stay_out_of_the_cache(package_copy: Path) -> None:
    """A changed loss is used at once, and a process without its module reads the cache of the others."""
    with_own = "import own_loss; run(own_loss.Constant(0.0))"
    (package_copy / "extremax" / "kernels" / "loop.py").write_text(textwrap.dedent(LOOP))
    (package_copy / "with_own.py").write_text(textwrap.dedent(RUN_LOOP).format(more=with_own))
    (package_copy / "without.py").write_text(textwrap.dedent(RUN_LOOP).format(more=""))
    for value in ("7.0", "8.0"):
        (package_copy / "own_loss.py").write_text(textwrap.dedent(OWN_LOSS).format(value=value))
        assert run_file(package_copy, "with_own.py") == ["0.693", value]
    written = {path: path.stat().st_mtime_ns for path in cache_files(package_copy, "loop.loop*")}
    assert len(written) == 2  # the index, and the kernel of negative sampling
    (package_copy / "own_loss.py").unlink()
    assert run_file(package_copy, "without.py") == ["0.693"]
    assert {path: path.stat().st_mtime_ns for path in cache_files(package_copy, "loop.loop*")} == written


@needs_compiler
def test_training_kernels_do_not_cache_registered_losses() -> None:
    train(Doubled(np.float32(1.0)))
    assert "Doubled" in str(train_kernel.uncached.signatures)
    assert "Doubled" not in str(train_kernel.cached.signatures)
