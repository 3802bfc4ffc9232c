"""``extremax export MODEL --onnx FILE``: a model for programs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extremax.cli import terminal
from extremax.cli.models import open_model
from extremax.cli.options import ModelArgument


def export(
    model: ModelArgument,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="ONNX file to write.")],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Labels per row.")] = 5,
    all_classes: Annotated[
        bool, typer.Option("--all", help="Write the probabilities of all classes, instead of the best k.")
    ] = False,
) -> None:
    """Write a model on dense features as an ONNX file.

    \b
    Input: features, float32 (n, n_features).
    Outputs: label, top_labels and top_probabilities; with --all, label and
    probabilities. Needs: pip install 'extremax[onnx]'.
    """
    from extremax.report.onnx import save_onnx

    save_onnx(open_model(model), onnx, k=None if all_classes else k)
    terminal.log(f"wrote {onnx}")
