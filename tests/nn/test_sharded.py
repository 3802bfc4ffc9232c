"""ShardedExtremeSoftmax on two and four gloo ranks, and in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import extremax
from extremax.nn import ExtremeSoftmax, ShardedExtremeSoftmax

SCRIPT = Path(__file__).parent / "processes.py"


def environment():
    source = str(Path(extremax.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@pytest.mark.reference
def test_ranks_agree_with_one_process(tmp_path):
    """All checks of processes.py; the later groups go on from the checkpoint of the first."""
    sizes = [2, 4, 1]
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), *map(str, sizes)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400)
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    failures = [f"{name}: {check}\n{text}" for name, x in found.items() for check, text in x.items()]
    assert not failures, "\n".join(failures)
    assert done.returncode == 0, done.stderr
    assert len(found) == sum(sizes)


def test_program_of_the_documentation_runs_on_two_processes(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "howto" / "pytorch.md"
    *_, program = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "program.py").write_text(program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, "program.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True torch.Size([256, 5])\n"


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_state_goes_into_an_extreme_softmax_and_back(one_process):
    layer, plain = ShardedExtremeSoftmax(4, 10), ExtremeSoftmax(4, 10)
    plain.load_state_dict({name: value.full_tensor() for name, value in layer.state_dict().items()})
    assert torch.equal(plain.weight, layer.weight)
    torch.nn.init.normal_(plain.weight)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(plain.weight, layer.weight)


def test_ddp_does_not_send_the_tables_of_samplers(one_process):
    """It would in every forward pass: 16 bytes a class."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), ExtremeSoftmax(4, 10))
    wrapped = DistributedDataParallel(model)
    assert {id(x) for x in wrapped.modules_buffers} == {id(x) for x in model[0].buffers()}
    assert {id(x) for x in wrapped._module_parameters} == {id(x) for x in model.parameters()}


@pytest.mark.error
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("wrong", [-1, 10])
def test_targets_that_no_rank_has_are_refused(one_process, wrong, training):
    layer = ShardedExtremeSoftmax(4, 10).train(training)
    with pytest.raises(IndexError, match=f"target {wrong} is neither a class, 0 to 9, nor ignored"):
        layer(torch.zeros(3, 4), torch.tensor([0, -100, wrong]))


@pytest.mark.error
def test_what_a_sharded_layer_refuses(one_process):
    layer = ShardedExtremeSoftmax(4, 10)
    with pytest.raises(NotImplementedError, match="use topk, or load the checkpoint"):
        layer(torch.zeros(2, 4))
    with pytest.raises(NotImplementedError, match="Resize an ExtremeSoftmax"):
        layer.resize(11)
    with pytest.raises(ValueError, match="k is 11; ask for 1 to 10"):
        layer.topk(torch.zeros(2, 4), 11)
    with pytest.raises(ValueError, match="sampler has 10 classes, and the layer 12"):
        ShardedExtremeSoftmax(4, 12, sampler=layer.sampler)


@pytest.mark.error
def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="needs a process group: launch with torchrun"):
        ShardedExtremeSoftmax(4, 10)
