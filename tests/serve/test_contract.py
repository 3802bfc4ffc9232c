"""The server against its own OpenAPI document: schemathesis makes requests, right ones and wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from extremax.serve.app import Application
from extremax.serve.models import Slot
from extremax.serve.settings import ServeConfig
from serve.conftest import LIMITS
from serve.live import PATIENCE, Live


def make_document(config: ServeConfig) -> dict[str, Any]:
    """Return the document of a server whose model is not loaded."""
    return Application([Slot("words", Path("words"))], config, print).build().openapi()


schemathesis: Any = pytest.importorskip("schemathesis")
CONFIG = ServeConfig(**LIMITS)
# What a model takes, and which models there are, is known to the server alone: a body may fit the document
# and not the model (422).  A text or list that is too long is 413.
ACCEPTED, REJECTED = ["2xx", "404", "413", "422"], ["400", "404", "413", "422"]
RULES = schemathesis.Config.from_dict(
    {
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ACCEPTED},
            "negative_data_rejection": {"expected-statuses": REJECTED},
        }
    }
)
schema = schemathesis.openapi.from_dict(make_document(CONFIG), config=RULES)


def test_document_is_valid() -> None:
    schema.validate()
    with_key = make_document(ServeConfig(api_key="k"))
    schemathesis.openapi.from_dict(with_key).validate()
    assert with_key["security"]
    assert with_key["paths"]["/health"]["get"]["security"] == []


def test_document_has_every_path() -> None:
    asked = ["/predict", "/invocations", "/explain", "/labels", "/info", "/analysis", "/tree"]
    named = [f"/models/{{name}}{path}" for path in asked]
    assert set(make_document(CONFIG)["paths"]) == {*asked, *named, "/models", "/health", "/ready", "/metrics"}


@schema.parametrize()
@settings(
    max_examples=4,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_keep_to_the_document(case: Any, live: Live) -> None:
    if "{name}" in case.operation.path and len(str(case.path_parameters["name"])) % 2:
        case.path_parameters["name"] = "words"  # else hardly a request would find a model
    case.call_and_validate(base_url=f"http://127.0.0.1:{live.port}", timeout=PATIENCE)
