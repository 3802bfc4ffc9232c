"""PyTorch output layers: softmax over very many classes, trained on a few of them in each step."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "extremax.nn needs PyTorch, which is not installed: pip install extremax[torch]"
    ) from error

from extremax.nn.functional import sampled_softmax_loss
from extremax.nn.layer import ExtremeSoftmax, SoftmaxOutput, TopK
from extremax.nn.optim import RowAdagrad, clip_grad_norm_, make_optimizer
from extremax.nn.samplers import Draw, FrequencySampler, UniformSampler
from extremax.nn.sharded import ShardedExtremeSoftmax

__all__ = [
    "Draw",
    "ExtremeSoftmax",
    "FrequencySampler",
    "RowAdagrad",
    "ShardedExtremeSoftmax",
    "SoftmaxOutput",
    "TopK",
    "UniformSampler",
    "clip_grad_norm_",
    "make_optimizer",
    "sampled_softmax_loss",
]
