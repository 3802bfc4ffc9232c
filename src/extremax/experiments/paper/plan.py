"""What a comparison needs before it starts: files, processor time and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from extremax.experiments import catalog, xml_cnn
from extremax.experiments.methods import make_classifier
from extremax.experiments.recipe import Recipe
from extremax.experiments.recipe import resolve as resolve_recipe
from extremax.runtime.context import Context
from extremax.runtime.memory import available_memory, describe_memory, format_bytes
from extremax.solvers.config import resolve
from extremax.tuned import ProblemSize

# Training rows, other rows, features and classes; those of the paper's data sets are from its Table 1.
SIZES = {
    "icd10cm": (48_265, 12_067, 512, 10_662),
    "eurlex57k": (45_000, 12_000, 512, 3_935),
    "eurlex57k-smallest": (45_000, 12_000, 512, 1_745),
    "npm-owner-124k": (751_783, 83_781, 256, 124_250),
    "polish-nouns": (1_395_959, 155_107, 512, 219_109),
    "amazon-670k": (490_449, 153_025, 512, 213_874),
    "wikipedia-500k": (1_646_302, 783_743, 512, 217_240),
    **{name: (int(6.4 * n), int(0.7 * n), 512, n) for name, n in catalog.LEMMA_SUBSETS.items()},
}
SOURCE = (
    "labels from the Extreme Classification Repository, features by XML-CNN (Liu et al. 2017), as the"
    " authors' repository mandt-lab/adversarial-negative-sampling describes"
)
# Processor seconds of a weight: of a training row and its negative, and of a class in an exact evaluation.
_TRAINING, _EVALUATION = 6e-9, 3e-11
_POINTS = 12  # of a learning curve without a plateau


def describe_needs(
    recipes: Mapping[str, Recipe],
    *,
    n_trials: int = 0,
    n_finalists: int = 1,
    n_seeds: int = 1,
    max_seconds: float | None = None,
) -> tuple[list[str], float]:
    """Word what recipes need on a known data set, and return their seconds at most; nothing for other data.

    Sizes are those of the paper's files, where they are there.
    """
    data = next(iter(recipes.values())).data.name
    if data not in SIZES:
        return [], 0.0
    folder, size = catalog.xml_cnn_folder(data), SIZES[data]
    if folder is None:
        files = ", ".join(str(path) for path in catalog.source_files(data)) or "a package"
    else:
        size, found = find_size(data)
        state = "found" if found else f"not found; {SOURCE}"
        files = f"{', '.join(xml_cnn.FILES)} in {catalog.FOLDER_VARIABLE}/{folder}/ ({state})"
    n_train, n_other, n_features, n_classes = size
    problem, needs, seconds = ProblemSize(n_train, n_train, n_features, n_classes), [], 0.0
    for recipe in recipes.values():
        model = resolve_recipe(recipe)["model"]
        config = resolve(make_classifier(model).solver, problem, n_epochs=model["n_epochs"])
        needs.append(config.make_trainer(Context(0, 1)).memory(problem))
        search, limits = recipe.search, recipe.evaluation
        epoch, look = _TRAINING * n_train * n_features, _EVALUATION * n_classes * n_features
        n_points = math.log2(config.n_epochs) + 3 if limits.until_plateau else _POINTS
        run = (max_seconds or epoch * config.n_epochs) + look * n_points * (
            limits.valid_rows + limits.test_rows
        )
        n_points = 2 if limits.until_plateau else _POINTS / 3
        trial = epoch * (search.n_epochs or config.n_epochs) + look * n_points * limits.valid_rows
        seconds += (n_seeds + (n_finalists - 1 if n_trials else 0)) * run + n_trials * trial
    memory = {"features": 9 * (n_train + n_other) * n_features, "training": max(needs)}
    rows = f"{n_train:,} training rows, {n_other:,} others, {n_features:,} features, {n_classes:,} classes"
    time = f"{len(recipes)} methods take at most about {seconds / 60:.0f} minutes of processor time"
    lines = [
        f"{data} needs {files}",
        f"{rows}; {time}",
        f"memory: {describe_memory(memory)}; {format_bytes(available_memory())} are free",
    ]
    return lines, seconds


def find_size(data: str) -> tuple[tuple[int, int, int, int], bool]:
    """Return the size of one of the paper's data sets, and whether it is that of the headers of its files."""
    folder = os.environ.get(catalog.FOLDER_VARIABLE)
    try:
        found = xml_cnn.find_files(Path(folder or "", catalog.xml_cnn_folder(data) or ""))
    except FileNotFoundError:
        return SIZES[data], False
    n_train, n_features = xml_cnn.read_header(found["trn_ft_mat_dense.txt"])
    n_test, _ = xml_cnn.read_header(found["tst_ft_mat_dense.txt"])
    _, n_labels = xml_cnn.read_header(found["trn_lbl_mat.txt"])
    return (n_train, n_test, n_features, min(n_labels, SIZES[data][3], n_train)), True
