"""Add, remove and merge classes: a fitted model turned into another, without a new fit.

Functions of a classifier change it in place; those of a `Fitted` return a new one and leave the given one
as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremax.class_texts import Descriptions
from extremax.errors import warn_caller
from extremax.examples import Examples
from extremax.model import ClassInfo, Model
from extremax.runtime.context import Context
from extremax.scores.base import EditableSearch, Scorer, Search, Weights
from extremax.scores.dense import DenseWeights
from extremax.scores.merged import LabelMap
from extremax.solvers.base import Trainer, TrainState
from extremax.solvers.config import FitConfig
from extremax.solvers.growth import (
    Discriminant,
    SparseRecord,
    estimate_discriminant,
    projected_discriminant,
)
from extremax.solvers.optimizers import Tables
from extremax.solvers.registry import SOLVERS
from extremax.solvers.sparse.solver import FinishedTables
from extremax.solvers.sparse.start import ClassSums
from extremax.storage.labels import check_savable
from extremax.tree.noise import EditedNoise
from extremax.types import Bool, Features, Float32, Float64, Int32, Int64
from extremax.validation.frames import is_frame
from extremax.validation.labels import LabelIndex, encode_labels, join_labels
from extremax.validation.sample_weight import row_weight
from extremax.validation.targets import encode_targets, indicator_format

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier
    from extremax.fit import Fitted
    from extremax.storage.models import Change

# Without whitened rows: new classes from which their rows also stand for those of other classes; with fewer,
# made-up rows do.
_ENOUGH_CLASSES, _MADE_UP_ROWS = 10, 500
_LEVEL_ROWS = 128  # of the new classes, whose probability chooses scale and bias
_MAX_LEAD = 2.0  # nats, the median lead on own rows where no others can be compared


# -- the classifier


def add_rows(
    clf: ExtremeClassifier,
    X: Features,
    y: Any,
    sample_weight: ArrayLike | None,
    classes: ArrayLike | None,
    n_ordinary: int | None = None,
) -> None:
    """Add the classes of checked rows, class texts from `n_ordinary` on, to a classifier in place."""
    known, targets = encode_targets(y, n_samples=X.shape[0], classes=classes)
    data = clf._weighted(replace(targets.with_features(X), n_ordinary=n_ordinary), sample_weight)
    ids = _find_labels(clf, known)
    if (ids >= 0).all():
        what = (
            f"all {len(known):,} labels of y are classes" if len(known) > 1 else "the label of y is a class"
        )
        raise ValueError(
            f"{what} of this model already; partial_fit(X, y) trains known classes on further rows."
        )
    is_new = ids[data.y] < 0
    has_new = np.bincount(data.rows, weights=is_new, minlength=data.n_rows) > 0
    wrong = np.flatnonzero(~has_new[data.rows])
    if len(wrong):
        row, label = int(data.rows[wrong[0]]), known.item(int(data.y[wrong[0]]))
        raise ValueError(
            f"y[{row}] is {label!r}, a class of this model already; add_classes takes rows of further"
            ' classes. partial_fit(X, y, new_classes="add") takes rows of both, and trains on all.'
        )
    _add(clf, known, ids, data)


def remove_labels(clf: ExtremeClassifier, labels: Any) -> None:
    """Remove labels, or a single label, from a classifier."""
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    alone = isinstance(labels, str | bytes) or not isinstance(labels, Iterable)
    kept = np.ones(len(clf.classes_), np.bool_)
    kept[clf.label_ids([labels] if alone else list(labels))] = False
    _require_classes_left(clf, int(kept.sum()), "remove_classes")
    fitted = remove_classes(clf._fitted, kept)
    _change(clf, "remove_classes", fitted, clf.classes_[kept], int((~kept).sum()), 0)


def rename_labels(clf: ExtremeClassifier, names: Mapping[Any, Any]) -> None:
    """Rename labels of a classifier; labels with the same new name become one."""
    if not isinstance(names, Mapping) or not names:
        raise TypeError("merge_classes takes a dict from labels to their new names, with one or more.")
    labels = clf.classes_.tolist()
    for label, name in zip(clf.label_ids(list(names)).tolist(), names.values(), strict=True):
        labels[label] = name
    known, target = encode_labels(labels, name="names")
    check_savable(known)
    if clf._indicator is not None:  # columns stay in their order
        first = np.unique(target, return_index=True)[1]
        order = np.argsort(first, kind="stable")
        known, target = known[order], np.argsort(order)[target].astype(np.int32)
    _require_classes_left(clf, len(known), "merge_classes")
    fitted = merge_classes(clf._fitted, np.asarray(target, np.int64))
    _change(clf, "merge_classes", fitted, known, len(names), 0, _merged_weights(clf, known, target))


def _find_labels(clf: ExtremeClassifier, labels: NDArray[Any]) -> Int32:
    """Return the class of each label, -1 for unknown labels."""
    return clf._label_index.find(labels, where=str, hint="", allow_unseen=True)


def _add(clf: ExtremeClassifier, known: NDArray[Any], ids: Int32, data: Examples) -> None:
    """Add those of the `known` labels that have no id yet, using their rows in `data`."""
    number = np.where(ids < 0, np.cumsum(ids < 0) - 1, -1).astype(np.int32)
    new, rows = known[ids < 0], replace(data, y=number[data.y]).usable().compact()
    check_savable(new)
    counts = rows.class_counts(len(new))
    if not counts.all():
        label = new.item(int(np.argmin(counts)))
        raise ValueError(f"class {label!r} has no row; give at least one row of every added class.")
    labels, place = join_labels(clf.classes_, new, in_order=clf._indicator is None)
    context = clf._context(clf.seed_)
    fitted = add_classes(clf._fitted, rows, place, context)
    _change(clf, "add_classes", fitted, labels, len(new), rows.n_rows)


def add_unseen(clf: ExtremeClassifier, y: Any, features: Features, sample_weight: ArrayLike | None) -> None:
    """Add the labels of rows that are not classes yet."""
    if clf._indicator is not None and indicator_format(y) is not None and not is_frame(y):
        return  # its columns are the classes
    known, targets = encode_targets(y, n_samples=features.shape[0])
    ids = _find_labels(clf, known)
    if (ids < 0).any():
        weight = row_weight(targets, sample_weight)
        _add(clf, known, ids, targets.with_features(features).with_row_weight(weight))


def _merged_weights(clf: ExtremeClassifier, labels: NDArray[Any], target: Int32) -> dict[Any, float] | None:
    """Return `class_weight` after a merge: means of the merged weights, weighted by training rows."""
    if not isinstance(clf.class_weight, dict):
        return None
    index = clf._label_index
    ids = index.find(list(clf.class_weight), where=str, hint="", allow_unseen=True)
    weights, named = np.ones(len(target)), np.zeros(len(labels), np.bool_)
    known = ids >= 0
    weights[ids[known]] = np.array([float(w) for w in clf.class_weight.values()])[known]
    named[target[ids[known]]] = True
    counts = clf.model_.classes.counts
    rows = np.ones(len(target)) if counts is None else np.maximum(counts, 0.5)
    found = np.bincount(target, weights=rows * weights) / np.bincount(target, weights=rows)
    return {labels.item(int(i)): float(found[i]) for i in np.flatnonzero(named)}


def _require_classes_left(clf: ExtremeClassifier, n_classes: int, method: str) -> None:
    if n_classes < 2:
        raise ValueError(
            f"{method} would leave {n_classes} of {len(clf.classes_):,} classes; a classifier needs at"
            " least two."
        )


def _change(
    clf: ExtremeClassifier,
    what: str,
    fitted: Fitted,
    labels: NDArray[Any],
    n_classes: int,
    n_rows: int,
    class_weight: dict[Any, float] | None = None,
) -> None:
    """Replace the fitted model by a changed one, and record the change."""
    index = LabelIndex(labels)
    record: Change = {
        "what": what,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "n_changed": n_classes,
        "n_rows": n_rows,
        "n_classes": len(labels),
    }
    if class_weight is not None:
        clf.class_weight = class_weight
    elif isinstance(clf.class_weight, dict):  # names of classes that are gone would be an error
        found = index.find(list(clf.class_weight), where=str, hint="", allow_unseen=True)
        pairs = zip(clf.class_weight.items(), found.tolist(), strict=True)
        clf.class_weight = {label: weight for (label, weight), i in pairs if i >= 0}
    clf.classes_, clf._label_index = labels, index
    clf._changes = (*clf._changes, record)
    clf._publish(fitted)


# -- the fitted model


def remove_classes(fitted: Fitted, kept: Bool) -> Fitted:
    """Return the model restricted to the `kept` classes, with the same scores.

    Its softmax is the conditional probability given that the class is a kept one.  Every kept class keeps its
    share of the uniform mixing.
    """
    model = fitted.model
    lines, label_map = model.lines.take(kept)
    index = np.flatnonzero(lines)
    mix, share = model.calibration.uniform_mix, len(index) / len(lines)
    calibration = model.calibration._replace(uniform_mix=mix * share / (1.0 - mix + mix * share))
    classes = _take_classes(model.classes, np.flatnonzero(kept))
    changed = replace(model, calibration=calibration, classes=classes, label_map=label_map)
    return _take_lines(replace_model(fitted, changed), index)


def merge_classes(fitted: Fitted, target: Int64) -> Fitted:
    """Return the model with classes merged; `target` is the number of each class afterwards."""
    model = fitted.model
    label_map = LabelMap(target[model.lines.class_of].astype(np.int32))
    classes = _merge_classes(model.classes, target, label_map.n_classes)
    if label_map.n_classes == label_map.n_lines:  # new names in another order
        renamed = replace_model(fitted, replace(model, classes=classes, label_map=None))
        return _take_lines(renamed, label_map.order.astype(np.int64))
    state = _new_state(fitted.state, noise=fitted.state.noise, class_means=classes.means)
    return replace_model(fitted, replace(model, classes=classes, label_map=label_map), state)


def add_classes(fitted: Fitted, data: Examples, place: Int64, context: Context) -> Fitted:
    """Return the model with new classes.

    Parameters
    ----------
    data
        Rows of the new classes, which are numbered from 0.
    place : (n_classes + n_new,)
        Classes in the order that they have afterwards: those of the model from 0, then the new ones.
    """
    model = fitted.model
    config = model.config
    if config is None:
        raise ValueError("this model has no record of how it was trained, so no class can be added.")
    n_new = len(place) - model.n_classes
    trainer = config.make_trainer(context)
    data = trainer.accept(data)
    state, weights = _grow(fitted, data, n_new, trainer, context)
    noise = state.noise
    counts = data.ordinary().class_counts(n_new).astype(np.int64)
    classes = _plus_classes(model.classes, counts, data)
    label_map = model.label_map
    if label_map is not None:
        more = model.n_classes + np.arange(n_new, dtype=np.int32)
        label_map = LabelMap(np.concatenate([label_map.class_of, more]))
    grown = replace(model, weights=weights, noise=noise, classes=classes, label_map=label_map, searches={})
    if noise is None:
        grown = replace(grown, projection=None, classes=replace(classes, means=None))
        state.projection = state.class_means = None
    searches = _follow(model, grown.scorer)
    changed = replace_model(fitted, replace(grown, searches=searches), state)
    return _order_classes(changed, place)


def replace_model(fitted: Fitted, model: Model, state: TrainState | None = None) -> Fitted:
    """Return a copy with another model and state, and without a reference for monitors.

    The reference holds answers of other classes.
    """
    model = replace(model, reference=None)
    state = fitted.state if state is None else state
    return replace(fitted, model=model, state=state, history=[dict(record) for record in fitted.history])


# -- weights, state and searches of some lines


def _new_state(state: TrainState, **changes: Any) -> TrainState:
    """Return a changed state without values of training pairs, which belong to other classes."""
    return replace(state, pair_values=None, pair_key=0, **changes)


def _noise_to_edit(model: Model) -> EditedNoise | None:
    """Return the noise that scores or training use; None where it only proposed classes."""
    if model.noise is None or not SOLVERS[model.solver].uses_noise:
        return None
    return EditedNoise.of(model.noise)


def _take_lines(fitted: Fitted, index: Int64) -> Fitted:
    """Return the model with some lines of the weights, in a given order."""
    model, state = fitted.model, fitted.state
    noise = _noise_to_edit(model)
    noise = None if noise is None else noise.take(index)
    stream = None if state.stream is None else state.stream.take(index)
    tables = state.tables.take(index)
    projection = None if noise is None else model.projection
    classes = model.classes if noise is not None else replace(model.classes, means=None)
    changed = _new_state(
        state,
        tables=tables,
        stream=stream,
        noise=noise,
        projection=projection,
        class_means=classes.means,
    )
    weights = _weights_of(model, changed, index)
    found = replace(model, weights=weights, noise=noise, projection=projection, classes=classes, searches={})
    searches = _follow(model, found.scorer)
    return replace_model(fitted, replace(found, searches=searches), changed)


def _weights_of(model: Model, state: TrainState, index: Int64) -> Weights:
    """Return the prediction weights of a state after its lines were taken."""
    tables = state.tables
    if isinstance(tables, Tables):
        return DenseWeights(tables.weights, tables.biases, state.feature_scale)
    if isinstance(tables, FinishedTables):
        return tables.weights
    weights: Weights = model.weights.take(index)
    tables.weights = weights
    return weights


def _follow(model: Model, scorer: Scorer) -> dict[str, Search]:
    """Return the searches after a change of the classes; a search that cannot follow is left out."""
    searches: dict[str, Search] = {}
    for name, search in model.searches.items():
        if isinstance(search, EditableSearch):
            searches[name] = search.follow(scorer)
        else:
            warn_caller(
                f"search {name!r} of this model cannot follow a change of its classes and is left out; add it"
                " again with add_search."
            )
    return searches


def _order_classes(fitted: Fitted, place: Int64) -> Fitted:
    """Return the model with its classes in another order."""
    if np.array_equal(place, np.arange(len(place))):
        return fitted
    model = fitted.model
    changed = replace(model, classes=_take_classes(model.classes, place))
    if model.label_map is None:
        return _take_lines(replace_model(fitted, changed), place)
    number = np.empty(len(place), np.int32)
    number[place] = np.arange(len(place), dtype=np.int32)
    label_map = LabelMap(number[model.label_map.class_of])
    fitted.state.class_means = changed.classes.means
    return replace_model(fitted, replace(changed, label_map=label_map))


# -- counts, means and descriptions of the classes


def _take_classes(classes: ClassInfo, index: Int64) -> ClassInfo:
    counts, n_samples = classes.counts, classes.n_samples
    if counts is not None:
        single = int(counts.sum()) == n_samples  # else rows may have other labels
        counts = counts[index]
        n_samples = int(counts.sum()) if single else n_samples
    texts = classes.descriptions
    return ClassInfo(
        counts,
        n_samples,
        None if classes.means is None else classes.means[index],
        None if texts is None else Descriptions.of([texts.text(int(i)) for i in index]),
        None if classes.texts is None else classes.texts.take(index),
    )


def _merge_classes(classes: ClassInfo, target: Int64, n_classes: int) -> ClassInfo:
    counts, means, texts = classes.counts, classes.means, classes.descriptions
    weight = np.ones(len(target)) if counts is None else np.maximum(counts, 0.5)
    if means is not None:
        summed = np.zeros((n_classes, means.shape[1]))
        np.add.at(summed, target, means.astype(np.float64) * weight[:, None])
        means = (summed / np.bincount(target, weights=weight)[:, None]).astype(np.float16)
    if texts is not None:
        joined: list[list[str]] = [[] for _ in range(n_classes)]
        for i, number in enumerate(target.tolist()):
            text = texts.text(i)
            if text and text not in joined[number]:
                joined[number].append(text)
        texts = Descriptions.of(["; ".join(part) for part in joined])
    if counts is not None:
        counts = np.bincount(target, weights=counts, minlength=n_classes).astype(np.int64)
    own = None if classes.texts is None else classes.texts.merge(target)
    return ClassInfo(counts, classes.n_samples, means, texts, own)


def _plus_classes(classes: ClassInfo, counts: Int64, data: Examples) -> ClassInfo:
    texts, n_rows = classes.descriptions, len(np.unique(data.ordinary().rows))
    if texts is not None:
        known = [texts.text(i) for i in range(len(texts.ends))]
        texts = Descriptions.of(known + [""] * len(counts))
    before = classes.counts
    joined = None if before is None else np.concatenate([before, counts])
    return ClassInfo(joined, classes.n_samples + n_rows, None, texts, classes.texts)


# -- weights of new classes


def _grow(
    fitted: Fitted, data: Examples, n_new: int, trainer: Trainer, context: Context
) -> tuple[TrainState, Weights]:
    """Return a state and weights with new classes appended."""
    state, config = fitted.state, trainer.config
    if isinstance(state.tables, Tables):
        return _grow_dense(fitted, data, n_new, config, context)
    if isinstance(state.tables, FinishedTables):
        record: SparseRecord | None = state.tables.record
        if record is None:
            raise ValueError(
                "this model was fitted by an earlier version, which did not store what a new class needs;"
                " fit it again."
            )
        new, after = record.grow(data, n_new, state.tables.weights, state.tables.scale)
        if record.mix.get("linear", 0.0) + record.mix.get("svm", 0.0) > 0.0:
            lead = _lead(record, state.tables, data, n_new, fitted.model, context)
            lower = max(0.0, lead - _MAX_LEAD)
            new = replace(new, biases=new.biases - np.float32(lower))
        weights = state.tables.weights.plus(new)
        return _new_state(state, tables=replace(state.tables, weights=weights, record=after)), weights
    tables = state.tables
    n_features = tables.sums.matrix.shape[1]
    sums = ClassSums.of(data, n_new, n_features, tables.scale, context.n_threads)
    grown = _new_state(state, tables=tables.plus(sums))
    return grown, trainer.export(grown)


def _grow_dense(
    fitted: Fitted, data: Examples, n_new: int, config: FitConfig, context: Context
) -> tuple[TrainState, Weights]:
    model, state = fitted.model, fitted.state
    counts = data.class_counts(n_new, weighted=True).astype(np.float64)
    total = float(model.classes.n_samples or data.n_rows)
    if state.whitening is not None:
        found = Discriminant.of(state.whitening, state.feature_scale, state.chosen, config)
        weights, biases = found.grow(data, n_new, total)
    else:
        weights, biases = _estimated(model, data, n_new, config, context)
    noise = _noise_to_edit(model)
    if noise is not None:
        constants = np.maximum(counts, 0.5) / total
        noise = noise.plus(constants)
        if model.noise_term is not None:  # prediction adds it
            biases = biases - np.log(constants).astype(np.float32)
    stream = None if state.stream is None else state.stream.plus_classes(n_new)
    tables = state.tables.plus(weights, biases)
    grown = _new_state(state, tables=tables, stream=stream, noise=noise, class_means=None)
    return grown, DenseWeights(tables.weights, tables.biases, state.feature_scale)


def _estimated(
    model: Model, data: Examples, n_new: int, config: FitConfig, context: Context
) -> tuple[Float32, Float32]:
    """Return weights of new classes of a model without whitened rows.

    The discriminant is that of the new rows.  Its scale, and how far it is ahead of or behind the other
    classes, are those under which the new rows, each left out of its class, and what stands for rows of
    the other classes are most probable.
    """
    rows, n_total = data.dense(), float(model.classes.n_samples or data.n_rows)
    scale = model.weights.feature_scale
    if model.projection is None or model.projection.is_identity:
        found = estimate_discriminant(rows, n_new, scale, config)
    else:
        found = projected_discriminant(rows, model.projection, scale, config)

    def level(X: Any) -> Float64:
        return model.log_normalizers(X, n_threads=context.n_threads)

    made_up = None
    if n_new < _ENOUGH_CLASSES:
        more = _make_up_rows(model, found, rows, _MADE_UP_ROWS)
        made_up = more, level(more)
    chosen = np.unique(np.linspace(0, data.n_pairs - 1, _LEVEL_ROWS).astype(np.int64))
    X: Any = data.X
    others = level(X[data.rows[chosen]])
    of_classes = found.class_rows(rows, n_new)
    fitted = found.level_with(rows, n_total, of_classes, chosen, others, made_up, config)
    if made_up is not None and model.classes.means is None:  # and its rows were a guess from the weights
        lead = float(np.median(fitted.own_scores(rows, n_total, of_classes)[chosen] - others))
        fitted = replace(fitted, bias=fitted.bias - max(0.0, lead - _MAX_LEAD))
    return fitted.grow(rows, n_new, n_total, of_classes)


def _lead(
    record: SparseRecord, tables: Any, data: Examples, n_new: int, model: Model, context: Context
) -> float:
    """Return the median lead of new classes on the half of their rows that they were not made from.

    Zero where no class has two rows.  A class that is far ahead on its own rows is also ahead on rows of
    other classes, and there is no such row to show it.
    """
    order = np.argsort(data.y, kind="stable")
    first = np.searchsorted(data.y[order], data.y[order])
    half = np.empty(data.n_pairs, np.int64)
    half[order] = (np.arange(data.n_pairs) - first) % 2
    several = data.class_counts(n_new)[data.y] >= 2
    if not several.any():
        return 0.0
    own = np.full(data.n_pairs, np.nan)
    for number in (0, 1):
        part, _ = record.grow(data.take(half == number), n_new, tables.weights, tables.scale)
        other = np.flatnonzero((half != number) & several)
        classes = np.ascontiguousarray(data.y[other, None], np.int32)
        own[other] = part.score_pairs(data.X, data.rows[other], classes, context.n_threads)[:, 0]
    others = model.log_normalizers(data.X, n_threads=context.n_threads)[data.rows]
    return float(np.nanmedian(own - others))


def _make_up_rows(model: Model, found: Discriminant, data: Examples, size: int) -> Float32:
    """Make up rows of the other classes: the mean of a class plus the residual of a new row.

    The means are those that the projection of the tree shows or, without a tree, those that the weights would
    have come from, were they a linear discriminant.
    """
    counts = model.classes.counts
    weight = np.ones(model.n_classes) if counts is None else np.maximum(counts, 0.5)
    generator = np.random.default_rng(0)
    chosen = generator.choice(model.n_classes, size, p=weight / weight.sum())
    residuals = found.residuals(data)
    residuals = residuals[generator.integers(0, len(residuals), size)]
    means, projection = model.classes.means, model.projection
    if means is not None and projection is not None:
        back = np.linalg.pinv(projection.components.astype(np.float64))
        centres = projection.mean + means[chosen].astype(np.float64) @ back.T
    else:
        centres = found.centres(model.weights.to_dense()[model.lines.first(chosen)], data)
    return (centres + residuals).astype(np.float32)
