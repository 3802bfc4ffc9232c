"""Answers in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from fastapi import Response
from starlette.exceptions import HTTPException


def json_response(value: Any) -> Response:
    """Return an answer as ASCII JSON: a text may hold half a surrogate pair, which UTF-8 cannot encode."""
    how: Any = {"allow_nan": False, "separators": (",", ":")}
    try:
        content = json.dumps(value, default=json_ready, **how)  # a long explanation in a tenth of the time
    except (TypeError, ValueError):  # NaN and infinity
        content = json.dumps(json_ready(value), **how)
    return Response(content, media_type="application/json")


def error_response(error: HTTPException) -> Response:
    """Return the answer to a request that failed."""
    found = json_response({"error": error.detail})
    found.status_code = error.status_code
    found.headers.update(error.headers or {})
    return found


def json_ready(value: Any) -> Any:
    """Return a value as JSON has it: numpy becomes plain, NaN and infinity null, other objects text."""
    if isinstance(value, dict):
        return {str(name): json_ready(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
