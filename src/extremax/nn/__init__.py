"""A PyTorch output layer: softmax over very many classes, trained with negatives from a label tree."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "extremax.nn needs PyTorch, which is not installed: pip install extremax[torch]"
    ) from error

from extremax.nn.head import AdversarialSoftmax, HeadOutput

__all__ = ["AdversarialSoftmax", "HeadOutput"]
