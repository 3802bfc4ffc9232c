"""``extremax demo``: train a classifier over the 10,662 parent codes of ICD-10-CM in about a minute."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.ask import answers_of, show_answers
from extremax.cli.options import Quiet, Seed, Threads
from extremax.cli.predict import probabilities

PHRASES = (
    "fell off a ladder",
    "bitten by a dog",
    "chest pain when breathing",
    "food allergy to peanuts",
    "fracture of the left wrist",
)
_CURVE_ROWS = 1000  # validation rows that are evaluated after each epoch


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the model and the figure.")
    ] = Path("demo"),
    epochs: Annotated[
        int | None,
        typer.Option(
            "--n-epochs", min=1, help="Passes over the training texts.  [default: chosen]", show_default=False
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1000, help="Train on this many texts only, for a quick look.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train on ICD-10-CM and compare with two baselines.

    \b
    Each short text describes a diagnosis; its label is the parent code.
    Five phrases are classified at the end; the model and a figure of the
    learning curves are saved in --out.
    """
    terminal.set_quiet(quiet)
    from extremax.estimator import ExtremeClassifier
    from extremax.features.text import TextFeatures
    from extremax.storage.folder import check_target
    from extremax.text_classifier import TextClassifier

    check_target(out / "model")
    terminal.log("reading ICD-10-CM from the package simple-icd-10-cm")
    data = load_texts(rows)
    texts, codes = data.train
    terminal.log(
        f"{len(texts):,} training texts, {len(set(codes)):,} codes; for example {texts[0]!r} has code"
        f" {codes[0]}"
    )
    verbose = int(sys.stderr.isatty() and not quiet)
    parameters: dict[str, Any] = {"random_state": seed, "n_jobs": threads, "verbose": verbose}
    terminal.log("compiling, once for this machine: about half a minute")
    compile_kernels(parameters)
    started = time.perf_counter()
    clf = TextClassifier(
        ExtremeClassifier(n_epochs=epochs, **parameters), features=TextFeatures(random_state=seed or 0)
    )
    clf.fit(texts, codes, eval_set=data.valid)
    budget = clf.history_[-1]["seconds"]
    others = time.perf_counter() - started - budget
    terminal.log(f"trained in {budget:.1f} s; text features and curves took {others:.1f} s")
    terminal.log(f"training with uniform negatives for {budget:.1f} s, for comparison")
    uniform = train_uniform(clf, data, budget, parameters | {"verbose": 0})
    frequencies = compare(clf, uniform, data, threads)

    clf.describe_classes([data.names[code] for code in clf.classes_.tolist()])
    out.mkdir(parents=True, exist_ok=True)
    clf.save(out / "model")
    figure = out / "learning_curve.png"
    draw_curves(figure, {"extremax": clf.history_, "uniform negatives": uniform.history_}, frequencies)

    labels, log_prob = clf.predict_topk(list(PHRASES), k=5)
    for phrase, names, p in zip(PHRASES, labels.tolist(), probabilities(log_prob), strict=True):
        terminal.write(f"\n{phrase}")  # not as a title, which a pipe would not show
        show_answers(answers_of(clf, names, p))
    terminal.log(f"model: {out / 'model'}   learning curves: {figure}")
    program = Path(sys.argv[0])
    command = str(program) if program.name == "extremax" else "extremax"
    terminal.log(f'classify your own text:  {command} ask {out / "model"} "short of breath after running"')


@dataclass(frozen=True)
class Texts:
    """Texts and codes by split; `names` describes the codes."""

    train: tuple[list[str], list[str]]
    valid: tuple[list[str], list[str]]
    test: tuple[list[str], list[str]]
    names: dict[str, str]


def load_texts(rows: int | None) -> Texts:
    """Return ICD-10-CM, with at most `rows` training texts and some validation texts of known codes."""
    import numpy as np

    from extremax.data import load_icd10cm, seen_classes

    data = load_icd10cm()
    train = data.rows(data.train if rows is None else data.train[:rows])
    texts, codes = data.rows(data.valid)
    known = np.flatnonzero(seen_classes(codes, train[1]))[:_CURVE_ROWS]
    valid = [texts[i] for i in known], [codes[i] for i in known]
    return Texts(train, valid, data.rows(data.test), data.names)


def train_uniform(clf: Any, data: Texts, budget: float, parameters: dict[str, Any]) -> Any:
    """Train on the same features with uniform negatives, for `budget` seconds."""
    from extremax.estimator import ExtremeClassifier

    (texts, codes), (valid_texts, valid_codes) = data.train, data.valid
    uniform = ExtremeClassifier("negative_sampling", "uniform", n_epochs=10_000, **parameters)
    with terminal.Bar("uniform negatives") as bar:

        def stop(record: dict[str, Any]) -> bool:
            bar(min(record["seconds"], budget), budget)
            return bool(record["seconds"] >= budget)

        eval_set = clf.transform(valid_texts), valid_codes
        uniform.fit(clf.transform(texts), codes, eval_set=eval_set, callbacks=[stop])
    return uniform


def compare(clf: Any, uniform: Any, data: Texts, threads: int | None) -> tuple[float, float, float]:
    """Write a table of test figures; return those of the class frequencies."""
    from extremax.data import seen_classes
    from extremax.evaluation import evaluate

    texts, codes = data.test
    frequencies = frequency_figures(data.train[1], codes)
    figures = {
        "class frequencies": frequencies,
        "uniform negatives": _figures(evaluate(uniform, clf.transform(texts), codes, n_jobs=threads)),
        "extremax": _figures(evaluate(clf, texts, codes, n_jobs=threads)),
    }
    table = [[name, f"{a:.1%}", f"{five:.1%}", f"{ll:.2f}"] for name, (a, five, ll) in figures.items()]
    n_test = int(seen_classes(codes, data.train[1]).sum())
    columns = ["", "accuracy", "top-5 accuracy", "log-likelihood"]
    title = f"On {n_test:,} test texts, after the same training time"
    terminal.print_table(columns, table, title=title, right=columns[1:])
    return frequencies


def compile_kernels(parameters: dict[str, Any]) -> None:
    """Fit once on a tiny problem, so that compilation is not counted as training."""
    import numpy as np

    from extremax.estimator import ExtremeClassifier

    rng = np.random.default_rng(0)
    y = np.arange(21_000) % 2100  # large enough for cells of the tree, calibration rows and the index
    X = rng.normal(size=(len(y), 4)).astype(np.float32)
    for objective, noise in (("auto", "adversarial"), ("negative_sampling", "uniform")):
        clf = ExtremeClassifier(objective, noise, n_epochs=1, **parameters | {"verbose": 0})
        clf.fit(X, y, eval_set=(X[:8], y[:8])).predict_topk(X[:8])


def _figures(report: Any) -> tuple[float, float, float]:
    return report.accuracy[1], report.accuracy[5], report.log_likelihood


def frequency_figures(codes: list[str], test_codes: list[str]) -> tuple[float, float, float]:
    """Return accuracy, top-5 accuracy and log-likelihood of the class frequencies.

    Test codes that do not occur in training are left out.
    """
    import numpy as np

    names, counts = np.unique(np.asarray(codes), return_counts=True)
    at = {name: i for i, name in enumerate(names.tolist())}
    ids = np.array([at[code] for code in test_codes if code in at])
    order = np.argsort(-counts, kind="stable")
    frequency = counts / counts.sum()
    top = [float(np.isin(ids, order[:k]).mean()) for k in (1, 5)]
    return top[0], top[1], float(np.log(frequency[ids]).mean())


def draw_curves(
    path: Path, histories: dict[str, list[dict[str, Any]]], frequencies: tuple[float, float, float]
) -> None:
    """Draw validation accuracy and log-likelihood against seconds of training, as a PNG file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the figure needs matplotlib: pip install extremax[demo].") from error
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for panel, key, title, level in (
        (panels[0], "valid_accuracy", "accuracy", frequencies[0]),
        (panels[1], "valid_log_likelihood", "log-likelihood", frequencies[2]),
    ):
        for name, history in histories.items():
            panel.plot(
                [record["seconds"] for record in history],
                [record[key] for record in history],
                marker=".",
                label=name,
            )
        panel.axhline(level, color="grey", linestyle=":", label="class frequencies")
        panel.set_xlabel("seconds of training")
        panel.set_title(f"ICD-10-CM, validation {title}", fontsize=10)
        panel.set_xlim(left=0)
    panels[0].set_ylim(bottom=0)
    panels[0].legend(frameon=False, fontsize=8)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    with terminal.atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)
