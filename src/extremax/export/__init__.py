"""Models for other programs: ONNX, and an MLflow flavour; optional dependencies are imported where used."""

from extremax.export.onnx import save_onnx

__all__ = ["save_onnx"]
