"""``extremax ask MODEL "text"``: the most probable labels of one text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import description_of, open_model, takes_texts
from extremax.cli.options import Json, ModelArgument, Search, Threads
from extremax.cli.predict import SEARCH_HELP, probabilities


def ask(
    model: ModelArgument,
    text: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Text to classify.", show_default=False)
    ],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Labels to show, best first.")] = 5,
    search: Annotated[Search, typer.Option(help=SEARCH_HELP)] = Search.exact,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show the most probable labels of one text.

    extremax ask model "fell off a ladder"
    """
    clf = open_model(model, threads)
    if not takes_texts(clf):
        raise ValueError(
            f"{model} was trained on features, not on texts; use: extremax predict {model} DATA."
        )
    question = " ".join(text)  # quotes are easily forgotten
    labels, log_prob = clf.predict_topk([question], min(k, len(clf.classes_)), search=search.value)
    answers = answers_of(clf, labels[0].tolist(), probabilities(log_prob)[0])
    if as_json:
        terminal.show_json({"text": question, "answers": answers})
    else:
        show_answers(answers)


def answers_of(clf: Any, labels: list[Any], probability: list[float]) -> list[dict[str, Any]]:
    """Return labels with their probabilities, and their descriptions where the model has any."""
    answers = []
    for label, p in zip(labels, probability, strict=True):
        text = description_of(clf, label)
        answers.append({"label": label, **({} if text is None else {"description": text}), "probability": p})
    return answers


def show_answers(answers: list[dict[str, Any]], title: str | None = None) -> None:
    """Write a table of answers to standard output."""
    columns = list(answers[0])
    rows = [
        [*(str(answer[name]) for name in columns[:-1]), _percent(answer["probability"])] for answer in answers
    ]
    terminal.print_table(columns, rows, title=title, right=["probability"])


def _percent(p: float) -> str:
    return f"{p:.1%}" if p >= 0.001 else f"{p:.1e}"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ask)
