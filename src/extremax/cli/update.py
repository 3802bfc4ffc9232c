"""``extremax update MODEL``: add classes by a file of rows, remove classes, give them other names."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import classifier_of, find_labels, load_rows, read_texts_of
from extremax.cli.options import ModelArgument, Opening, Reading

_LABEL_FILE = "@"  # before the name of a file of labels


def update(  # noqa: PLR0913 (the options are the interface)
    model: ModelArgument,
    *,
    add: Annotated[Path | None, typer.Option(metavar="FILE", help="Add the classes of these rows.")] = None,
    class_texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Names of the added classes; labels without rows are learned from their names alone.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Remove a class; @FILE has one per line. May be repeated."),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW",
            help="Rename the class OLD, or merge it into NEW; @FILE has one per line. May be repeated.",
        ),
    ] = None,
    known: Annotated[
        bool,
        typer.Option(
            "--train-known", help="Allow rows of known classes in FILE, and train an epoch on all rows."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to save the result.  [default: MODEL]")
    ] = None,
    opening: Opening,
    reading: Reading,
) -> None:
    """Change the classes of a model, and save it.

    \b
    Classes are removed first, then renamed or merged, then added. The model
    is replaced when all is done, or stays as it was.

    \b
    extremax update model --add new-tickets.csv
    extremax update model --class-texts names-of-new-classes.tsv
    extremax update model --remove obsolete --remove "other things"
    extremax update model --merge kitten=cat --merge @merges.txt --out merged
    """
    terminal.set_quiet(opening.quiet)
    from extremax.runtime.locks import hold_folder
    from extremax.storage.folder import HEADER, check_target
    from extremax.text import load_model

    if add is None and class_texts is None and not remove and not merge:
        raise typer.BadParameter("nothing to do: give --add, --class-texts, --remove or --merge.")
    if class_texts is not None and known:
        raise typer.BadParameter("--class-texts names new classes; it does not go with --train-known.")
    target = model if out is None else out
    in_place = os.path.realpath(target) == os.path.realpath(model)
    # from load to save: of two updates at once, one would be lost
    with hold_folder(model) if in_place and (model / HEADER).exists() else nullcontext():
        clf = load_model(model, encoder=opening.encoder)
        classifier = classifier_of(clf)
        saved, classifier.n_jobs = classifier.n_jobs, opening.threads
        n_before = len(clf.changes_)
        check_target(target)
        if remove:
            clf.remove_classes(find_labels(clf, _listed(remove)))
        if merge:
            clf.merge_classes(_pairs(clf, _listed(merge)))
        if add is not None or class_texts is not None:
            _add(clf, add, reading, known, class_texts)
        done = clf.changes_[n_before:]
        classifier.n_jobs = saved  # the threads of this call are no parameter of the model
        clf.save(target)
    if opening.as_json:
        terminal.show_json({"model": str(target), "n_classes": len(clf.classes_), "changes": done})
    for change in done:
        rows = f" by {change['n_rows']:,} rows" if change["n_rows"] else ""
        terminal.log(
            f"{change['what'].replace('_', ' ')}: {change['n_changed']:,}{rows}, then {change['n_classes']:,}"
        )
    terminal.log(f"saved in {target}" + (", in place of the model that was there" if in_place else ""))


def _listed(given: list[str]) -> list[str]:
    """Return the words given, and the lines of files named by @FILE."""
    found: list[str] = []
    for word in given:
        if not word.startswith(_LABEL_FILE):
            found.append(word)
            continue
        path = Path(word.removeprefix(_LABEL_FILE))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8; save it as UTF-8 text.") from None
        found += [line for line in text.splitlines() if line.strip()]
    return found


def _pairs(clf: Any, words: list[str]) -> dict[Any, Any]:
    """Return new names by label, from words OLD=NEW."""
    by_name = {str(label): label for label in clf.classes_.tolist()}
    found: dict[Any, Any] = {}
    for word in words:
        # A label may hold the sign itself: the first place where what stands before is a label.
        cut = next((i for i, c in enumerate(word) if c == "=" and word[:i] in by_name), len(word))
        name: Any = word[cut + 1 :]
        if not name:
            raise ValueError(f"--merge takes OLD=NEW with a class OLD of this model; got {word!r}.")
        if name not in by_name and clf.classes_.dtype.kind in "iu":
            try:
                name = int(name)
            except ValueError:
                raise ValueError(
                    f"--merge {word}: the classes of this model are numbers, {name!r} is not."
                ) from None
        found[by_name[word[:cut]]] = by_name.get(name, name)
    return found


def _add(clf: Any, path: Path | None, reading: Reading, known: bool, class_texts: Path | None) -> None:
    more: dict[str, Any] = {}
    if class_texts is not None:
        if not clf.takes_texts:
            raise ValueError("this model takes features, not texts, so class texts do not apply.")
        old = set(clf.classes_.tolist())
        found = read_texts_of(class_texts, clf.classes_.tolist(), reading.encoding)
        more["class_texts"] = [{name: kind[name] for name in kind if name not in old} for kind in found]
        n_known = len({name for kind in found for name in kind if name in old})
        if n_known:
            terminal.log(f"{class_texts}: {n_known:,} labels are classes already; their texts are left out")
    if path is None:
        clf.add_classes(**more)
        return
    inputs, labels = load_rows(clf, path, reading)
    if clf.classes_.dtype.kind in "iu":
        named = (label for row in labels for label in (row if isinstance(row, list) else [row]))
        wrong = next((label for label in named if isinstance(label, str)), None)
        if wrong is not None:
            raise ValueError(
                f"{path} has the label {wrong!r}, but the classes of this model are numbers; give numbers."
            )
    if known:
        clf.partial_fit(inputs, labels, new_classes="add")
    else:
        clf.add_classes(inputs, labels, **more)
