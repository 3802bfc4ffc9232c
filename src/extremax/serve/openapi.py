"""The OpenAPI 3.1 document of the server: what requests and answers look like."""

from __future__ import annotations

from typing import Any

from extremax.serve.settings import ServeConfig

Schema = dict[str, Any]


def make_document(config: ServeConfig, version: str) -> Schema:
    """Return the document for a server with these limits."""
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "extremax",
            "version": version,
            "description": "Classifiers over very many classes. /predict takes the schema of Hugging Face's"
            " text classification. Every error is an object with one sentence.",
        },
        "paths": _paths(),
        "components": {"schemas": _schemas(config), "responses": _error_responses()},
    }
    if config.api_key is not None:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        document["security"] = [{"bearer": []}, {"header": []}]
        for path in ("/health", "/ready"):
            document["paths"][path]["get"]["security"] = []
    return document


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _paths() -> Schema:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths: Schema = {}
    for prefix, parameters in (("", []), ("/models/{name}", [name])):
        suffix = "_of" if prefix else ""
        for path, call in _questions(suffix).items():
            method = "post" if "requestBody" in call else "get"
            given = call.get("parameters", [])
            if not prefix and method == "get":
                given = [
                    *given,
                    _query("model", {"type": "string"}, "Name of the model; the first by default."),
                ]
            paths[prefix + path] = {method: {**call, "parameters": [*parameters, *given]}}
    plain = {
        "/models": ("models", "List the models.", "Models", ()),
        "/health": ("health", "Say that the process is alive.", "Status", ()),
        "/ready": ("ready", "Say whether the models answer.", "Status", ("Overloaded",)),
    }
    for path, (operation, summary, schema, errors) in plain.items():
        paths[path] = {
            "get": {"operationId": operation, "summary": summary, "responses": _responses(schema, errors)}
        }
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "summary": "Figures of the server, for Prometheus.",
            "responses": {
                "200": {
                    "description": "Figures in Prometheus' text format.",
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                },
                "401": {"$ref": "#/components/responses/Unauthorized"},
            },
        }
    }
    return paths


def _questions(suffix: str) -> Schema:
    limit = _query(
        "limit", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}, "Labels to list."
    )
    text = {"type": "string"}
    found = {
        "/predict": _post("predict", "The most probable labels of texts or vectors.", "Question", "Answer"),
        "/invocations": _post("invocations", "The same as /predict.", "Question", "Answer"),
        "/explain": _post("explain", "What made the first label of one text.", "WhyQuestion", "Explanation"),
        "/labels": _get(
            "labels",
            "Labels by the beginning of their names.",
            "Labels",
            [
                _query("prefix", text, "Beginning of the label; case does not matter."),
                _query("contains", text, "Part of the label or of its description."),
                limit,
            ],
        ),
        "/info": _get("info", "What the model is, and the limits of the server.", "Info", []),
        "/analysis": _get("analysis", "Figures of the model's page.", "Anything", []),
        "/tree": _get(
            "tree",
            "Nodes of the label tree: those below a node, the path of a label, or a search.",
            "Anything",
            [
                _query("node", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "Number of a node."),
                _query("depth", {"type": "integer", "minimum": 1, "maximum": 12}, "Levels below the node."),
                _query("label", text, "Label whose path from the root is asked for."),
                _query("search", text, "Part of a label or of its description."),
                limit,
            ],
        ),
    }
    for call in found.values():
        call["operationId"] += suffix
    return found


def _post(name: str, summary: str, question: str, answer: str) -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": _ref(question)}}}
    errors = ("Bad", "Unauthorized", "Missing", "Slow", "TooLarge", "Unfit", "Overloaded", "Late")
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": body,
        "responses": _responses(answer, errors),
    }


def _get(name: str, summary: str, answer: str, parameters: list[Schema]) -> Schema:
    errors = ("Unauthorized", "Missing", "Unfit", "Late")
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": _responses(answer, errors),
    }


def _query(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


_ERRORS = {
    "Bad": (400, "The body is not JSON in UTF-8."),
    "Unauthorized": (401, "The API key is missing or wrong."),
    "Missing": (404, "There is no such model, label or node."),
    "Slow": (408, "The body did not arrive in time."),
    "TooLarge": (413, "The body, a text or the list is too long."),
    "Unfit": (422, "A field is missing, unknown, or not what this model takes."),
    "Overloaded": (503, "The queue is full, or the server is starting or stopping; try again."),
    "Late": (504, "The answer took too long."),
}


def _responses(schema: str, errors: tuple[str, ...]) -> Schema:
    found: Schema = {
        "200": {"description": "The answer.", "content": {"application/json": {"schema": _ref(schema)}}}
    }
    for name in errors:
        found[str(_ERRORS[name][0])] = {"$ref": f"#/components/responses/{name}"}
    return found


def _error_responses() -> Schema:
    found: Schema = {}
    for name, (status, text) in _ERRORS.items():
        found[name] = {"description": text, "content": {"application/json": {"schema": _ref("Error")}}}
        if status == 503:
            found[name]["headers"] = {
                "Retry-After": {"schema": {"type": "string"}, "description": "Seconds to wait."}
            }
    return found


def _object(properties: Schema, required: list[str], **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required, **more}


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _schemas(config: ServeConfig) -> Schema:
    text = {"type": "string", "maxLength": config.max_characters}
    number, whole = {"type": "number"}, {"type": "integer"}
    sparse = _object(
        {"indices": _array({"type": "integer", "minimum": 0}), "values": _array(number)},
        ["indices", "values"],
        additionalProperties=False,
    )
    row = {"anyOf": [text, _array(number), sparse]}
    top_k = {"type": ["integer", "null"], "minimum": 1, "maximum": config.max_top_k}
    model = {"type": ["string", "null"], "description": "Name of the model; the first by default."}
    label = {"label": {"type": "string"}, "id": whole, "description": {"type": "string"}}
    scored = {**label, "score": number, "known": {"type": "boolean", "const": False}}
    terms = _array(_array({"anyOf": [{"type": "string"}, number]}, minItems=2, maxItems=2))
    contributions = _object(
        {
            "label": {"type": "string"},
            "rather_than": {"type": ["string", "null"]},
            "total": number,
            "terms": terms,
            "words": terms,
        },
        ["label", "rather_than", "total", "terms", "words"],
    )
    parameters = {
        "top_k": {**top_k, "description": f"Labels per text, {config.top_k} by default."},
        "search": {"type": ["string", "null"], "description": "exact, beam, or another search of the model."},
        "function_to_apply": {
            "enum": ["softmax", "none", None],
            "description": "softmax: scores are probabilities; none: their logarithms.",
        },
    }
    return {
        "Question": _object(
            {
                "inputs": {
                    "anyOf": [row, _array(row, maxItems=config.max_texts)],
                    "description": "A text or a list of texts; or vectors, for models that take them.",
                },
                "parameters": {
                    "anyOf": [_object(parameters, [], additionalProperties=False), {"type": "null"}]
                },
                "model": model,
            },
            ["inputs"],
            additionalProperties=False,
            examples=[{"inputs": "fell off a ladder", "parameters": {"top_k": 3}}],
        ),
        "WhyQuestion": _object(
            {
                "inputs": row,
                "parameters": {
                    "anyOf": [_object({"top_k": top_k}, [], additionalProperties=False), {"type": "null"}]
                },
                "model": model,
            },
            ["inputs"],
            additionalProperties=False,
            examples=[{"inputs": "fell off a ladder"}],
        ),
        "Label": _object(
            scored,
            ["label", "score", "id"],
            description="score is the probability; known is false where a text says nothing to the model.",
        ),
        "Answer": {
            "anyOf": [_array(_ref("Label")), _array(_array(_ref("Label")))],
            "description": "The labels of a text, best first; for a list of texts, a list of such lists.",
        },
        "Contributions": contributions,
        "Explanation": _object(
            {
                "labels": _array(_ref("Label")),
                "is_known": {"type": "boolean"},
                "score": _ref("Contributions"),
                "against": _array(_ref("Contributions")),
                "path": {"type": ["array", "null"]},
            },
            ["labels", "is_known", "score", "against", "path"],
        ),
        "Labels": _object(
            {"labels": _array(_object({**label, "n_samples": whole}, ["label", "id"])), "total": whole},
            ["labels", "total"],
        ),
        "Models": _object(
            {"models": _array({"type": "string"}), "default": {"type": "string"}}, ["models", "default"]
        ),
        "Info": _object(
            {
                "name": {"type": "string"},
                "input": {"enum": ["texts", "vectors"]},
                "n_classes": whole,
                "n_features": whole,
                "models": _array({"type": "string"}),
                "limits": {"type": "object"},
                "monitor": {"type": ["object", "null"]},
            },
            ["name", "input", "n_classes", "n_features", "models", "limits", "monitor"],
        ),
        "Status": _object({"status": {"type": "string"}}, ["status"]),
        "Anything": {"type": "object"},
        "Error": _object({"error": {"type": "string"}}, ["error"]),
    }
