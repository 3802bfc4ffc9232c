"""ShardedExtremeSoftmax: groups of 1 to 4 processes against one, and what a user is told."""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import load

import extremax
from coverings import in_turn
from extremax.nn import ExtremeSoftmax, ShardedExtremeSoftmax
from layer_kinds import KINDS

SIZES = (1, 2, 3, 4)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # of torch, where there is one process
def test_groups_of_processes_agree_with_one_reference(tmp_path):
    """All checks of sharded_processes.py; they share their processes, whose start takes seconds."""
    script = Path(__file__).parent / "sharded_processes.py"
    source = str(Path(extremax.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    failures = {}
    for size in SIZES:
        for rank in range(size):
            name = f"failed-{size}-{rank}.json"
            failures[name] = json.loads((tmp_path / name).read_text())
    assert not any(failures.values()), "\n".join(
        f"{name}: {check}\n{text}" for name, found in failures.items() for check, text in found.items()
    )
    load_without_processes(tmp_path)


def load_without_processes(folder):
    """A checkpoint of two processes, read into a layer that knows of none."""
    layer = ExtremeSoftmax(6, 23, n_jobs=1)
    names = ("weight", "bias", "n_steps", "class_counts")
    state = {name: layer.state_dict()[name] for name in names}
    load(state, checkpoint_id=folder / "checkpoint-dense", no_dist=True)
    layer.load_state_dict(state, strict=False)
    generator = torch.Generator().manual_seed(7)
    expected = 0.7 * torch.randn(23, 6, generator=generator, dtype=torch.float64)
    assert torch.equal(layer.weight.detach(), expected.float())
    assert int(layer.n_steps) == 5
    assert layer.class_counts[-1] == 23**2


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_process_group_rejects():
    with pytest.raises(RuntimeError, match="needs a process group: launch with torchrun"):
        ShardedExtremeSoftmax(4, 10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_shared": 0}, "n_shared is 0"),
        ({"steps_per_batch": 0}, "steps_per_batch is 0"),
        ({"gradients": "fused", "label_smoothing": 0.1}, "gradients='fused' has no label smoothing"),
        ({"rows": "all"}, "rows is 'all'; use 'own' or 'same'"),
        ({"gradients": "none"}, "gradients is 'none'"),
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
        ({"class_counts": [1, 2]}, r"class_counts has shape \(2,\)"),
    ],
)
def test_wrong_options_rejects(one_process, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ShardedExtremeSoftmax(4, 10, **options)


@pytest.mark.parametrize("gradients", ["dense", "fused"])
def test_training_again_counts_and_draws_again_invariant(one_process, gradients):
    """The same seed and rows after a reset or another state: sets of before are forgotten."""
    layer = ShardedExtremeSoftmax(4, 50, n_shared=8, gradients=gradients)
    other = ShardedExtremeSoftmax(4, 50, n_shared=8, gradients=gradients, class_counts=range(1, 51))
    y = torch.arange(5)

    def draw():
        torch.manual_seed(0)
        (found,) = layer._class_sets(y, y)
        assert int(layer.n_steps) == 1
        return found.minus_log_pi.tolist()

    first = draw()
    layer.reset_parameters()
    assert draw() == first
    layer.load_state_dict(other.state_dict())
    assert draw() != first


@pytest.mark.parametrize(("old", "new"), list(itertools.pairwise([*KINDS, *list(KINDS)[:1]])))
def test_state_of_other_gradients_is_loaded_reference(one_process, old, new):
    """Tables come along; sums and moments come along where both have them, and start anew elsewhere."""
    first = ShardedExtremeSoftmax(4, 10, class_counts=range(1, 11), **KINDS[old])
    fresh = ShardedExtremeSoftmax(4, 10, **KINDS[new]).unsharded_state_dict()
    first(torch.ones(3, 4), torch.arange(3)).loss.backward()
    given = first.unsharded_state_dict()
    for state in (first.state_dict(), given):
        for device, assign in (("cpu", False), ("cpu", True), ("meta", True)):
            second = ShardedExtremeSoftmax(4, 10, device=device, **KINDS[new])
            if device == "cpu":
                second(torch.ones(3, 4), torch.arange(3)).loss.backward()
            second.load_state_dict(copy.deepcopy(state), assign=assign)
            for name, value in second.unsharded_state_dict().items():
                has_both = name in given and given[name].shape == value.shape
                assert torch.equal(value, given[name] if has_both else fresh[name]), name
            second(torch.ones(3, 4), torch.arange(3)).loss.backward()


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (0, 1)])
def test_rows_of_any_stride_are_gathered_invariant(one_process, shape):
    wide = torch.arange(60.0).reshape(10, 6)[: shape[0], ::3][:, 1:]
    assert wide.shape == shape
    layer = ShardedExtremeSoftmax(1, 10)
    with torch.no_grad():
        layer.weight.to_local().copy_(torch.arange(10.0).unsqueeze(1))
        assert torch.equal(layer(wide), layer(wide.clone(memory_format=torch.contiguous_format)))


def test_moments_stay_in_float32_on_the_cpu(one_process):
    """Whatever the type and the device of the tables."""
    layer = ShardedExtremeSoftmax(4, 10, gradients="fused").double()
    assert layer.hidden_moments.moments.dtype == torch.float32
    layer(torch.ones(3, 4), torch.arange(3)).loss.backward()
    assert layer.weight.dtype == torch.float64
    assert layer.weight.to_local().any()
    layer.to("meta")
    assert layer.hidden_moments.moments.is_meta
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    layer(torch.ones(3, 4), torch.arange(3)).loss.backward()
    assert int(layer.hidden_moments.n_steps) == 1


@in_turn(kind=KINDS, dtype=["float", "half", "bfloat16", "double"])
def test_types_of_weights_leave_counts_and_sums_invariant(one_process, kind, dtype):
    """Buffers stay bit for bit, in the type that they have, and steps of weights in any type go on."""
    layer = ShardedExtremeSoftmax(4, 10, class_counts=range(100_001, 100_011), **KINDS[kind])
    hidden, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    for _ in range(3):
        layer(hidden, y).loss.backward()
    before = {name: local(buffer).clone() for name, buffer in layer.named_buffers()}
    getattr(layer, dtype)()
    assert local(layer.weight).dtype == getattr(torch, dtype)
    for name, buffer in layer.named_buffers():
        assert local(buffer).dtype == before[name].dtype, name
        assert torch.equal(local(buffer), before[name]), name
    layer.zero_grad()
    layer(hidden.to(getattr(torch, dtype)), y).loss.backward()
    if layer.gradients == "fused":
        assert (local(layer.squares) > before["squares"]).any()
        assert local(layer.weight).isfinite().all()


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def test_wrong_input_rejects(one_process):
    layer = ShardedExtremeSoftmax(4, 10)
    with pytest.raises(ValueError, match="its last dimension must be 4"):
        layer(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="targets holds 10; the classes are 0 to 9"):
        layer(torch.zeros(2, 4), torch.tensor([1, 10]))
    with pytest.raises(ValueError, match="k is 11; ask for 1 to 10"):
        layer.predict_topk(torch.zeros(2, 4), 11)
    with pytest.raises(ValueError, match="mean over no rows"):
        layer.log_likelihood(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert "classes 0 to 9 here" in repr(layer)
