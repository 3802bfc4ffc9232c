"""``extremax ask MODEL "text"``: the most probable labels of one text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import answers_of, open_model
from extremax.cli.options import Encoder, Json, ModelArgument, Search, Threads
from extremax.cli.predict import SEARCH_HELP

_TERMS = 8  # words, and n-grams, that are shown


def ask(  # noqa: PLR0913 (the parameters are the options)
    model: ModelArgument,
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Text to classify.")],
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

    Where texts have several labels, the probability of each is the one that it applies.

    \b
    extremax ask model "fell off a ladder"
    extremax ask model --why "fell off a ladder"
    """
    clf = open_model(model, threads, encoder)
    if not clf.takes_texts:
        raise ValueError(
            f"{model} was trained on features, not on texts; use: extremax predict {model} DATA."
        )
    question = " ".join(text)  # quotes are easily forgotten
    k = min(k, len(clf.classes_))
    (answers,) = answers_of(clf, [question], k, search.value)
    is_known = bool(clf.is_known([question])[0])
    explanation = clf.explain(question, k=min(2, len(clf.classes_))) if why else None
    if as_json:
        found: dict[str, Any] = {"text": question, "is_known": is_known, "answers": answers}
        terminal.show_json(found | ({} if explanation is None else {"why": explanation.to_dict()}))
        return
    if not is_known:
        terminal.log("no known word was found; these are the class frequencies")
    show_answers(answers)
    if explanation is not None and is_known:
        show_reasons(explanation)


def show_answers(answers: list[dict[str, Any]]) -> None:
    """Write a table of labels with their probabilities."""
    terminal.print_table(list(answers[0]), [list(answer.values()) for answer in answers])


def show_reasons(explanation: Any) -> None:
    """Write tables of what speaks for the first label, and for it rather than the second."""
    if explanation.matched is not None:
        terminal.write(f"\n{explanation.label} matched the name {explanation.matched!r}")
    for part in (explanation.score, *explanation.against[:1]):
        rather = "" if part.rather_than is None else f" rather than {part.rather_than}"
        words, others = part.words[:_TERMS], part.words[_TERMS:]
        if others:
            words = [*words, (f"{len(others)} others", sum(value for _, value in others))]
        total = ("difference" if rather else "score", part.total)
        terminal.write(f"\nwhy {part.label}{rather}")  # not a title, which a pipe would not show
        terminal.print_table(["word", "adds"], [[word, f"{value:+.2f}"] for word, value in [*words, total]])
        terminal.write("  ".join(f"{ngram} {value:+.2f}" for ngram, value in part.ngrams[:_TERMS]))
