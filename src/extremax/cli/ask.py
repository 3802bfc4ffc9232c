"""``extremax ask MODEL "text"``: the most probable labels of one text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import description_of, open_model, takes_texts
from extremax.cli.options import Encoder, Json, ModelArgument, Search, Threads
from extremax.cli.predict import SEARCH_HELP, probabilities

UNKNOWN = "no known word was found; these are the class frequencies"
_TERMS = 8  # words, and n-grams, that are shown


def ask(  # noqa: PLR0913 (the parameters are the options)
    model: ModelArgument,
    text: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Text to classify.", show_default=False)
    ],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Labels to show, best first.")] = 5,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show what the words of the text add to the score of the first label."),
    ] = False,
    search: Annotated[Search, typer.Option(help=SEARCH_HELP)] = Search.exact,
    encoder: Encoder = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show the most probable labels of one text.

    \b
    extremax ask model "fell off a ladder"
    extremax ask model --why "fell off a ladder"
    """
    clf = open_model(model, threads, encoder)
    if not takes_texts(clf):
        raise ValueError(
            f"{model} was trained on features, not on texts; use: extremax predict {model} DATA."
        )
    question = " ".join(text)  # quotes are easily forgotten
    labels, log_prob = clf.predict_topk([question], min(k, len(clf.classes_)), search=search.value)
    answers = answers_of(clf, labels[0].tolist(), probabilities(log_prob)[0])
    is_known = bool(clf.is_known([question])[0])
    explanation = clf.explain(question, k=min(2, len(clf.classes_))) if why else None
    if as_json:
        found: dict[str, Any] = {"text": question, "is_known": is_known, "answers": answers}
        terminal.show_json(found | ({} if explanation is None else {"why": explanation.to_dict()}))
        return
    if not is_known:
        terminal.log(UNKNOWN)
    show_answers(answers)
    if explanation is not None and is_known:
        show_reasons(explanation)


def show_reasons(explanation: Any) -> None:
    """Write tables of what speaks for the first label, and for it rather than the second."""
    for part in (explanation.score, explanation.difference):
        if part is None:
            continue
        what = f"why {part.label}"
        name = "score"
        if part.rather_than is not None:
            what, name = f"{what} rather than {part.rather_than}", "difference"
        words = [*shorten(part.words), (name, part.total)]
        terminal.write(f"\n{what}")  # not as a title, which a pipe would not show
        terminal.print_table(["word", "adds"], [[w, f"{v:+.2f}"] for w, v in words], right=["adds"])
        terminal.write("  ".join(f"{ngram} {v:+.2f}" for ngram, v in part.ngrams[:_TERMS]))


def shorten(terms: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the terms that matter most, and the sum of the others."""
    if len(terms) <= _TERMS:
        return terms
    others = terms[_TERMS:]
    return [*terms[:_TERMS], (f"{len(others)} others", sum(value for _, value in others))]


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
        [*(str(answer[name]) for name in columns[:-1]), terminal.fraction(answer["probability"])]
        for answer in answers
    ]
    terminal.print_table(columns, rows, title=title, right=["probability"])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ask)
