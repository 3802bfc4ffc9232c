"""Headers of model folders from the time when all parameters belonged to the classifier.

They name an objective and hold the parameters of all solvers side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extremax.params import PARAMETERS, SOLVER_PARAMETERS
from extremax.solvers.registry import CUSTOM_NOISE

_NAMES = {"shared_softmax": "minibatch_softmax", "softmax": "minibatch_softmax"}
_NOISES = {"adversarial": "tree"}


def with_solvers(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the header of a model folder with a solver in the place of an objective."""
    model, estimator = header.get("model"), header.get("estimator")
    if not isinstance(model, Mapping) or not isinstance(objective := model.get("objective"), str):
        return header
    model = {**model, "solver": _NAMES.get(objective, objective)}
    if isinstance(config := model.get("config"), Mapping):
        named = config.get("objective")
        model["config"] = {**config, "solver": _solver(named if isinstance(named, str) else "", config)}
    if not isinstance(estimator, Mapping) or not isinstance(given := estimator.get("parameters"), Mapping):
        return {**header, "model": model}
    own = {name: value for name, value in given.items() if name in SOLVER_PARAMETERS}
    plain = {n: value for n, value in given.items() if n not in SOLVER_PARAMETERS and n != "objective"}
    changed = any(_NOISES.get(str(value), value) != PARAMETERS[name].default for name, value in own.items())
    chosen = given.get("objective", "auto")
    is_auto = chosen == "auto" and "noise" in own and not changed
    solver = "auto" if is_auto else _solver(objective if chosen == "auto" else str(chosen), own)
    return {**header, "model": model, "estimator": {**estimator, "parameters": {**plain, "solver": solver}}}


def _solver(objective: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of a solver, from parameters of which some belong to others."""
    name = _NAMES.get(objective, objective)
    own = {parameter: value for parameter, value in flat.items() if parameter in SOLVER_PARAMETERS}
    noise = own.get("noise", CUSTOM_NOISE)  # an object was stored by itself
    own["noise"] = _NOISES.get(noise, noise) if isinstance(noise, str) else noise
    if objective == "softmax":
        own["n_shared"] = None
    if name == "minibatch_softmax":
        own["noise"] = "tree" if own["noise"] == "mixture" else own["noise"]
        if "penalized_scores" not in flat:  # the version that wrote it did not use the penalty here
            own["score_penalty"] = 0.0
    return {"name": name, **own}
