"""PyTorch output layers: softmax over very many classes, trained on a few of them in each step."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "extremax.nn needs PyTorch, which is not installed: pip install extremax[torch]"
    ) from error

from extremax.nn.sharded import ShardedExtremeSoftmax
from extremax.nn.softmax import ExtremeSoftmax, SoftmaxOutput

__all__ = ["ExtremeSoftmax", "ShardedExtremeSoftmax", "SoftmaxOutput"]
