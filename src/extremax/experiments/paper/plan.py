"""What a reproduction on the paper's data needs before it starts: files and memory."""

from __future__ import annotations

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

# Training rows, test rows, features and classes of the paper's data sets: its Table 1, and the repository.
PAPER_SIZES = {
    "amazon-670k": (490_449, 153_025, 512, 213_874),
    "wikipedia-500k": (1_646_302, 783_743, 512, 217_240),
}
SOURCE = (
    "labels from the Extreme Classification Repository, features by XML-CNN (Liu et al. 2017), as the"
    " authors' repository mandt-lab/adversarial-negative-sampling describes"
)


def describe_needs(data: str, recipes: Mapping[str, Recipe]) -> list[str]:
    """Word the files and the memory that the recipes need on one of the paper's data sets; else nothing.

    Sizes are those of the files, or the paper's where they are missing.
    """
    if data not in PAPER_SIZES:
        return []
    (n_train, n_test, n_features, n_classes), has_files = find_size(data)
    problem = ProblemSize(n_train, n_train, n_features, n_classes)
    classifiers = [make_classifier(resolve_recipe(recipe)["model"]) for recipe in recipes.values()]
    configs = [resolve(clf.solver, problem, n_epochs=clf.n_epochs) for clf in classifiers]
    training = [config.make_trainer(Context(0, 1)).memory(problem) for config in configs]
    memory = {"rows of the files": 4 * (n_train + n_test) * n_features, "training": max(training)}
    where = f"{catalog.FOLDER_VARIABLE}/{catalog.xml_cnn_folder(data)}/"
    state = "found" if has_files else f"not found; {SOURCE}"
    rows = f"{n_train:,} training rows, {n_test:,} test rows"
    return [
        f"{data} needs {', '.join(xml_cnn.FILES)} in {where} ({state})",
        f"{rows}, {n_features:,} features, about {n_classes:,} classes",
        f"memory: {describe_memory(memory)}; {format_bytes(available_memory())} are free",
    ]


def find_size(data: str) -> tuple[tuple[int, int, int, int], bool]:
    """Return the size of one of the paper's data sets, and whether it is that of the headers of its files."""
    n_classes = PAPER_SIZES[data][3]
    folder = os.environ.get(catalog.FOLDER_VARIABLE)
    try:
        found = xml_cnn.find_files(Path(folder or "", catalog.xml_cnn_folder(data) or ""))
    except FileNotFoundError:
        return PAPER_SIZES[data], False
    n_train, n_features = xml_cnn.read_header(found["trn_ft_mat_dense.txt"])
    n_test, _ = xml_cnn.read_header(found["tst_ft_mat_dense.txt"])
    _, n_labels = xml_cnn.read_header(found["trn_lbl_mat.txt"])
    return (n_train, n_test, n_features, min(n_labels, n_classes, n_train)), True
