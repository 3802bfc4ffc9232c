"""``extremax demo``: train a classifier over the 10,662 parent codes of ICD-10-CM in about a minute."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.ask import answers_of, show_answers, show_reasons
from extremax.cli.options import Quiet, Seed, Threads
from extremax.cli.predict import probabilities

PHRASES = (
    "bitten by a dog",
    "chest pain when breathing",
    "food allergy to peanuts",
    "fracture of the left wrist",
    "fell off a ladder",
)
_CURVE_ROWS = 1000  # validation rows that are evaluated after each epoch
_COMPILE_ROWS = 3000  # training texts of the fit that compiles the kernels
_CENTROID_ROWS = 500  # texts whose cosines with all classes are computed at a time
Figures = tuple[float, float, float]  # accuracy, top-5 accuracy, log-likelihood


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
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Draw the pages of the model there; needs a Chromium."),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train on ICD-10-CM and compare with two baselines.

    \b
    Each short text describes a diagnosis; its label is the parent code.
    Five phrases are classified at the end, the last one with the words that
    made it so; the model, a figure of the learning curve and a report on the
    test texts are saved in --out.
    """
    terminal.set_quiet(quiet)
    from extremax.classifier import ExtremeClassifier
    from extremax.storage.folder import check_target
    from extremax.text import TextClassifier

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
    terminal.log("compiling, once for this machine: about a minute")
    compile_kernels(data, parameters)
    started = time.perf_counter()
    clf = TextClassifier(ExtremeClassifier(n_epochs=epochs, **parameters))
    clf.fit(texts, codes, eval_set=data.valid)
    seconds = clf.history_[-1]["seconds"]
    others = time.perf_counter() - started - seconds
    terminal.log(f"trained in {seconds:.1f} s; text features, curve and calibration took {others:.1f} s")
    figures = compare(clf, data, threads)

    clf.describe_classes([data.names[code] for code in clf.classes_.tolist()])
    out.mkdir(parents=True, exist_ok=True)
    clf.save(out / "model")
    figure = out / "learning_curve.png"
    draw_curves(figure, clf.history_, figures)

    labels, log_prob = clf.predict_topk(list(PHRASES), k=5)
    for phrase, names, p in zip(PHRASES, labels.tolist(), probabilities(log_prob), strict=True):
        terminal.write(f"\n{phrase}")  # not as a title, which a pipe would not show
        show_answers(answers_of(clf, names, p))
    show_reasons(clf.explain(PHRASES[-1], k=2))
    report = out / "report.html"
    write_pages(clf, data, report, pictures)
    terminal.log(f"model: {out / 'model'}   learning curve: {figure}   report: {report}")
    program = Path(sys.argv[0])
    command = str(program) if program.name == "extremax" else "extremax"
    terminal.log(f'classify your own text:  {command} ask {out / "model"} --why "short of breath"')


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


def compare(clf: Any, data: Texts, threads: int | None) -> dict[str, Figures]:
    """Write a table of test figures, and return those of the baselines."""
    from extremax.data import seen_classes
    from extremax.evaluation import evaluate

    texts, codes = data.test
    figures = {
        "class frequencies": frequency_figures(data.train[1], codes),
        "nearest centroid": centroid_figures(clf, data),
    }
    found = {**figures, "extremax": _figures(evaluate(clf, texts, codes, n_jobs=threads))}
    table = [
        [name, terminal.fraction(a), terminal.fraction(five), f"{ll:.4f}"]
        for name, (a, five, ll) in found.items()
    ]
    n_test = int(seen_classes(codes, data.train[1]).sum())
    columns = ["", "accuracy", "top-5 accuracy", "log-likelihood"]
    terminal.print_table(columns, table, title=f"On {n_test:,} test texts", right=columns[1:])
    return figures


def compile_kernels(data: Texts, parameters: dict[str, Any]) -> None:
    """Fit once on a few texts, so that compilation is not counted as training."""
    from extremax.classifier import ExtremeClassifier
    from extremax.text import TextClassifier

    texts, codes = (part[:_COMPILE_ROWS] for part in data.train)
    clf = TextClassifier(ExtremeClassifier(n_epochs=1, **parameters | {"verbose": 0}))
    clf.fit(texts, codes, eval_set=(texts[:8], codes[:8])).predict_topk(texts[:8])


def _figures(report: Any) -> Figures:
    return report.accuracy[1], report.accuracy[5], report.log_likelihood


def frequency_figures(codes: list[str], test_codes: list[str]) -> Figures:
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


def centroid_figures(clf: Any, data: Texts) -> Figures:
    """Return the same of the cosine between a text and the mean of a class, on the same features.

    Its probabilities are a softmax of the cosines times a number that is chosen on validation texts.
    """
    import numpy as np
    import scipy.sparse as sp
    from sklearn.preprocessing import normalize

    names, ids = np.unique(np.asarray(data.train[1]), return_inverse=True)
    members = sp.csr_matrix((np.ones(len(ids), np.float32), (ids, np.arange(len(ids)))))
    centroids = normalize(members @ clf.features_.transform(data.train[0])).T.tocsr()
    at = {name: i for i, name in enumerate(names.tolist())}

    def measure(part: tuple[list[str], list[str]], scales: list[float]) -> Any:
        known = [(text, at[code]) for text, code in zip(*part, strict=True) if code in at]
        found = []
        for first in range(0, len(known), _CENTROID_ROWS):
            texts, labels = zip(*known[first : first + _CENTROID_ROWS], strict=True)
            cosine = (clf.features_.transform(texts) @ centroids).toarray()
            own = cosine[np.arange(len(labels)), labels]
            rank = (cosine > own[:, None]).sum(axis=1)
            mass = [np.log(np.exp(s * (cosine - own[:, None])).sum(axis=1)) for s in scales]
            found.append(np.stack([rank < 1, rank < 5, *(-m for m in mass)]))
        return np.concatenate(found, axis=1).mean(axis=1)

    scales = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0]
    best = scales[int(np.argmax(measure(data.valid, scales)[2:]))]
    accuracy, five, log_likelihood = measure(data.test, [best]).tolist()
    return accuracy, five, log_likelihood


def write_pages(clf: Any, data: Texts, report: Path, pictures: Path | None) -> None:
    """Write the report on the test texts, and pictures of the pages where a folder is given for them."""
    from extremax.report import analyse, make_document, write_report
    from extremax.report.pictures import take_pictures

    document = make_document(clf, analyse(clf, *data.test))
    write_report(clf, document, report, title="ICD-10-CM")
    if pictures is not None:
        phrases = {"text": PHRASES[1], "branch_of": PHRASES[-1]}
        take_pictures(clf, document, pictures, title="ICD-10-CM", **phrases)
        terminal.log(f"pictures: {pictures}")


def draw_curves(path: Path, history: list[dict[str, Any]], baselines: dict[str, Figures]) -> None:
    """Draw validation accuracy and log-likelihood against seconds of training, as a PNG file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the figure needs matplotlib: pip install extremax[demo].") from error
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    for panel, key, title, which in (
        (panels[0], "valid_accuracy", "accuracy", 0),
        (panels[1], "valid_log_likelihood", "log-likelihood", 2),
    ):
        seconds = [record["seconds"] for record in history]
        panel.plot(seconds, [record[key] for record in history], marker=".", label="extremax")
        for (name, figures), style in zip(baselines.items(), (":", "--"), strict=True):
            panel.axhline(figures[which], color="grey", linestyle=style, label=name)
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
