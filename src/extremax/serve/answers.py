"""Answers in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
from fastapi import Response
from starlette.exceptions import HTTPException


def json_response(value: Any) -> Response:
    """Return an answer in JSON."""
    return Response(to_json(value), media_type="application/json")


def to_json(value: Any) -> bytes:
    """Return JSON, in ASCII where a text holds half a surrogate pair, which UTF-8 cannot encode."""
    try:
        return msgspec.json.encode(value, enc_hook=json_ready)  # NaN and infinity become null
    except (TypeError, UnicodeEncodeError):
        return json.dumps(json_ready(value), separators=(",", ":")).encode()


def busy(sentence: str) -> HTTPException:
    """Return the error of a server that cannot answer now, and may in a second."""
    return HTTPException(503, sentence, {"Retry-After": "1"})


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
