"""The ASGI application: paths, limits of requests, and the one place that turns errors into answers."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from extremax.errors import ScoreOverflowError
from extremax.serve import requests, static_files
from extremax.serve.batching import Batcher
from extremax.serve.docs_page import render_docs
from extremax.serve.metrics import CONTENT_TYPE, Metrics
from extremax.serve.models import ServedModel, Slot, json_ready, watch
from extremax.serve.openapi import make_document
from extremax.serve.settings import RequestError, ServeConfig

Message = dict[str, Any]
Log = Callable[[str], None]
# Paths that need no key: they say nothing about the models' data.
_OPEN = ("/", "/model", "/docs", "/docs.css", "/openapi.json", "/health", "/ready", "/ping", "/favicon.ico")
_QUICK = ("/predict", "/invocations")
_EXPLAINED = 3  # labels of an explanation
_MAX_LIMIT = 1000  # labels of a list
_MAX_DEPTH = 12
_PAGE_CALLS = 4  # calls of a model's page at the same time; its first one may take a minute


def create_app(
    models: Mapping[str, str | os.PathLike[str]] | Sequence[Slot],
    config: ServeConfig | None = None,
    *,
    log: Log = lambda text: None,
) -> Starlette:
    """Return the ASGI application that serves some models; the first one is the default.

    Parameters
    ----------
    models : dict of str to path-like, or sequence of Slot
        Names and folders of the models.
    config : ServeConfig, optional
    log : callable
        Called with a line for every reload.
    """
    slots = (
        [Slot(name, Path(path)) for name, path in models.items()] if isinstance(models, Mapping) else models
    )
    return _Application(slots, config or ServeConfig(), log).build()


class _Application:
    """What all requests share."""

    def __init__(self, slots: Sequence[Slot], config: ServeConfig, log: Log) -> None:
        if not slots:
            raise ValueError("there is no model to serve; give at least one folder.")
        self.slots = {slot.name: slot for slot in slots}
        if len(self.slots) < len(slots):
            raise ValueError("two models have the same name; name them: NAME=FOLDER.")
        self.default, self.config, self.log = slots[0], config, log
        self.metrics = Metrics()
        self.batcher = Batcher(config, on_batch=self.metrics.count_batch, on_wait=self.metrics.waits.observe)
        self.metrics.watch(self.batcher, slots)
        self.is_ready = self.is_stopping = False
        self.page_calls = asyncio.Semaphore(_PAGE_CALLS)
        self.static = static_files.read_static()
        self.document = make_document(config, _version())
        self.answers = {
            "/openapi.json": _json(self.document),
            "/docs": Response(render_docs(self.document), media_type="text/html"),
            "/docs.css": Response(static_files.DOCS_STYLE, media_type="text/css"),
        }
        for slot in slots:
            slot.log = log
            if slot.current is None:
                slot.load(config, self.prepare)
            else:
                self.prepare(slot.current)

    def prepare(self, model: ServedModel) -> None:
        """Connect a model that was just loaded with the metrics, and give it a monitor."""
        self.metrics.count_rows(model)
        if self.config.monitor_alpha > 0 and hasattr(model.clf, "monitor"):
            with contextlib.suppress(ValueError):  # a model without held-out rows
                model.monitor = model.clf.monitor(alpha=self.config.monitor_alpha)

    def build(self) -> Starlette:
        """Return the application."""
        posts = {"/predict": self.predict, "/invocations": self.predict, "/explain": self.explain}
        gets = {
            "/info": self.info,
            "/labels": self.labels,
            "/analysis": self.analysis,
            "/tree": self.tree,
        }
        routes = []
        for prefix in ("", "/models/{name}"):
            routes += [Route(prefix + path, call, methods=["POST"]) for path, call in posts.items()]
            routes += [Route(prefix + path, call, methods=["GET"]) for path, call in gets.items()]
        plain = {"/models": self.models, "/metrics": self.show_metrics, "/ready": self.ready}
        plain |= dict.fromkeys(("/health", "/ping"), self.health)
        plain |= dict.fromkeys(self.answers, self.fixed)
        plain |= dict.fromkeys(("/", "/model", "/favicon.ico", "/static/{path:path}"), self.static_file)
        routes += [Route(path, call, methods=["GET"]) for path, call in plain.items()]
        app = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers={HTTPException: _answer_http_error, RequestError: _answer_request_error},
        )
        app.add_middleware(_Guard, application=self)
        app.state.stop = self.stop
        return app

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Watch the folders while the server runs; answer everything that is queued before it ends."""
        watching = None
        if self.config.reload_seconds > 0:
            found = watch(list(self.slots.values()), self.config, self.prepare, self.on_reload)
            watching = asyncio.create_task(found)
        self.is_ready = True
        try:
            yield
        finally:
            self.is_ready = False
            if watching is not None:
                watching.cancel()
            await self.batcher.close()

    def stop(self) -> None:
        """Say to every client that its next answer is the last one of its connection."""
        self.is_ready, self.is_stopping = False, True

    def on_reload(self, slot: Slot, done: bool, seconds: float) -> None:
        """Count and log a reload."""
        self.metrics.reloads.labels(slot.name, "done" if done else "failed").inc()
        if done:
            self.log(f"{slot.name}: loaded again from {slot.folder} in {seconds:.2f} s")
        else:
            self.log(f"{slot.name}: the old model stays, the new one cannot be loaded: {slot.error}")

    # -- models --------------------------------------------------------------------------------------------

    def find(self, name: str | None) -> tuple[Slot, ServedModel]:
        """Return the slot and the model of a name; the first one for None."""
        slot = self.default if name is None else self.slots.get(name)
        if slot is None or slot.current is None:
            known = ", ".join(self.slots)
            raise RequestError(404, f"there is no model {str(name)[:80]!r}; the models are {known}.")
        return slot, slot.current

    def asked_model(
        self, request: Request, body: Mapping[str, Any] | None = None
    ) -> tuple[Slot, ServedModel]:
        """Return the model that a path, a body or a query names; all names must agree."""
        names = [request.path_params.get("name"), request.query_params.get("model")]
        names.append(None if body is None else requests.read_model_name(body))
        given = list(dict.fromkeys(name for name in names if name is not None))
        if len(given) > 1:
            raise RequestError(422, "the request names two models; name one, in the path or in the body.")
        return self.find(given[0] if given else None)

    # -- questions -----------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        """Answer texts or vectors with their most probable labels."""
        with self.arriving():
            body = requests.parse_body(await self.read_body(request))
        _, model = self.asked_model(request, body)
        work, rows = requests.read_predict(body, model, self.config)
        try:
            answers = await self.batcher.run(work, rows.rows)
        except ScoreOverflowError:
            raise RequestError(
                422, "the scores of a row overflow: its numbers are too large for this model."
            ) from None
        content = answers[0] if rows.is_single else b"[" + b",".join(answers) + b"]"
        return Response(content, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        """Answer why the first label of one row is predicted."""
        body = requests.parse_body(await self.read_body(request))
        _, model = self.asked_model(request, body)
        rows = requests.read_rows(body, model, self.config)
        if not rows.is_single:
            raise RequestError(422, "inputs is a list of rows; /explain takes one text or one vector.")
        parameters = requests.read_parameters(body)
        unused = next((name for name in parameters if name != "top_k"), None)
        if unused is not None:
            raise RequestError(422, f"the parameter {unused} is unknown to /explain; it takes top_k.")
        top_k = requests.read_top_k(parameters, _EXPLAINED, self.config)
        try:
            found = await asyncio.to_thread(model.explain, rows.rows[0], rows.kind, top_k)
        except ScoreOverflowError:
            raise RequestError(
                422, "the scores of a row overflow: its numbers are too large for this model."
            ) from None
        return _json(found)

    @contextlib.contextmanager
    def arriving(self) -> Iterator[None]:
        """Count a request whose body is on its way: others may wait a moment for its rows."""
        self.batcher.n_arriving += 1
        try:
            yield
        finally:
            self.batcher.n_arriving -= 1

    async def read_body(self, request: Request) -> bytes:
        """Return the body; raise RequestError (413) for one that is too long, and stop reading."""
        limit = self.config.max_body_bytes
        too_long = RequestError(
            413, f"the body is longer than {limit:,} bytes; send fewer texts in one request."
        )
        stated = request.headers.get("content-length", "0")
        if stated.isdigit() and int(stated[:20]) > limit:
            raise too_long
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_long
            parts.append(part)
        request.state.is_read = True
        return b"".join(parts)

    async def labels(self, request: Request) -> Response:
        """List labels by the beginning of their names."""
        query = _query(request, ("prefix", "contains", "limit", "model"))
        limit = _whole_number(query, "limit", 20, 1, _MAX_LIMIT)
        _, model = self.asked_model(request)
        prefix, contains = query.get("prefix", ""), query.get("contains", "")
        return _json(await asyncio.to_thread(model.labels, prefix, contains, limit))

    async def info(self, request: Request) -> Response:
        """Say what a model is."""
        _query(request, ("model",))
        slot, model = self.asked_model(request)
        config = self.config
        about = await asyncio.to_thread(model.info)
        about |= {
            "has_tree": model.has_page,
            "has_analysis": model.document is not None,
            "version": _version(),
            "n_reloads": slot.n_reloads,
            "reload_error": slot.error,
            "models": list(self.slots),
            "needs_key": config.api_key is not None,
            "limits": {
                "texts": config.max_texts,
                "text_characters": config.max_characters,
                "body_bytes": config.max_body_bytes,
                "top_k": config.max_top_k,
                "seconds": config.max_seconds,
            },
            "monitor": None,
        }
        if model.monitor is not None:
            with model.monitor_lock:
                about["monitor"] = json_ready(model.monitor.report())
        return _json(about)

    async def models(self, request: Request) -> Response:
        """List the models."""
        _query(request, ())
        return _json({"models": list(self.slots), "default": self.default.name})

    async def analysis(self, request: Request) -> Response:
        """Answer with the figures of the model's page."""
        _query(request, ("model",))
        _, model = self.asked_model(request)
        return _json(json_ready(await self.of_page(lambda: model.page().overview())))

    async def tree(self, request: Request) -> Response:
        """Answer with nodes of the label tree."""
        query = _query(request, ("node", "depth", "label", "search", "limit", "model"))
        node = _whole_number(query, "node", 0, 0, 2**31 - 1)
        depth = _whole_number(query, "depth", 5, 1, _MAX_DEPTH)
        limit = _whole_number(query, "limit", 20, 1, _MAX_LIMIT)
        _, model = self.asked_model(request)
        if "label" in query:
            number = await asyncio.to_thread(model.find_label, query["label"])
            return _json({"path": json_ready(await self.of_page(lambda: model.page().path(number)))})
        if "search" in query:
            return _json(json_ready(await self.of_page(lambda: model.page().search(query["search"], limit))))
        return _json(json_ready(await self.of_page(lambda: model.page().tree(node, depth))))

    async def of_page(self, call: Callable[[], Any]) -> Any:
        """Return what the page of a model has; what it does not have is a 404."""
        await self.page_calls.acquire()
        try:
            # A request that is given up does not end its thread, which keeps its place until it is done.
            return await _in_thread(call, self.page_calls.release)
        except ValueError as error:
            raise RequestError(404, str(error)) from None

    # -- the server itself ---------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Say that the process is alive."""
        return _json({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        """Say whether the models answer."""
        if not self.is_ready:
            raise RequestError(503, "the server is starting or stopping.", {"Retry-After": "1"})
        return _json({"status": "ready"})

    async def show_metrics(self, request: Request) -> Response:
        """Answer with the figures for Prometheus."""
        return Response(await asyncio.to_thread(self.metrics.text), headers={"Content-Type": CONTENT_TYPE})

    async def fixed(self, request: Request) -> Response:
        """Answer with a document that never changes."""
        found = self.answers[request.url.path]
        return Response(found.body, headers=static_files.HEADERS, media_type=found.media_type)

    async def static_file(self, request: Request) -> Response:
        """Answer with a file of the page."""
        found = static_files.find(self.static, request.url.path)
        if found is None and request.url.path == "/":
            return Response(self.answers["/docs"].body, headers=static_files.HEADERS, media_type="text/html")
        if found is None:
            raise RequestError(404, "there is no such page.")
        headers = {**static_files.HEADERS, "ETag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)


async def _in_thread(call: Callable[[], Any], at_end: Callable[[], None]) -> Any:
    """Return the result of a long call, made in a thread that a stopping server does not wait for.

    `at_end` is called in the event loop when the thread ends, even if the request has been given up.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: Exception | None) -> None:
        at_end()
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as found:
            error = found
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(finish, result, error)

    try:
        threading.Thread(target=work, name="extremax-page", daemon=True).start()
    except RuntimeError:  # there are no more threads
        at_end()
        raise
    return await done


class _Guard:
    """The outermost layer: API key, time limit, counting, and an answer to every failure."""

    def __init__(self, app: Any, application: _Application) -> None:
        self.app, self.application = app, application
        self.config, self.metrics = application.config, application.metrics
        key = self.config.api_key
        self.key = None if key is None else key.encode()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_in_time(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                # an unread body may be endless: close the connection
                unread = scope["method"] == "POST" and not scope["state"].get("is_read", False)
                if (status >= 400 and unread) or self.application.is_stopping:
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            async with asyncio.timeout(self.config.max_seconds):  # a client may stop reading
                await send(message)

        scope.setdefault("state", {})
        self.metrics.active.inc()
        try:
            await self._answer(scope, receive, send_in_time)
        finally:
            self.metrics.active.dec()
            path = _known_path(scope)
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

    async def _answer(self, scope: Message, receive: Any, send: Any) -> None:
        has_begun = False

        async def note(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._check_key(scope)
            async with asyncio.timeout(self.config.max_seconds):
                if scope["method"] == "POST" and scope["path"] in _QUICK:  # past the routes: half the time
                    answer = await self.application.predict(Request(scope, receive))
                    await answer(scope, receive, note)
                else:
                    await self.app(scope, receive, note)
            return
        except RequestError as found:
            error = found
        except ClientDisconnect:
            return
        except TimeoutError:
            is_read = scope["method"] != "POST" or scope["state"].get("is_read", False)
            limit = self.config.max_seconds
            seconds = f"{limit:g} second" + ("" if limit == 1 else "s")
            error = (
                RequestError(
                    504, f"the answer took longer than {seconds}; send fewer texts, or try again later."
                )
                if is_read
                else RequestError(408, f"the request did not arrive within {seconds}.")
            )
        except Exception as fault:
            self.application.log(f"a request failed: {type(fault).__name__}: {fault}")
            error = RequestError(500, "the server failed to answer this request; its log says why.")
        if not has_begun:
            await _error_response(error)(scope, receive, send)

    def _check_key(self, scope: Message) -> None:
        """Raise RequestError (401) unless a request carries the key, where there is one."""
        path = scope["path"]
        if self.key is None or path in _OPEN or path.startswith("/static/"):
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        if not hmac.compare_digest(given, self.key):
            raise RequestError(
                401,
                "this server wants its API key: send the header Authorization: Bearer KEY.",
                {"WWW-Authenticate": "Bearer"},
            )


def _known_path(scope: Message) -> str:
    """Return the path of a request for metrics: one of few, whatever is asked for."""
    path = str(scope["path"])
    if path.startswith("/models/"):
        path = "/" + path.split("/", 3)[-1]
    if path.startswith("/static/"):
        return "/static"
    return path if path in _COUNTED else "other"


_COUNTED = frozenset(
    (
        *_OPEN,
        "/predict",
        "/invocations",
        "/explain",
        "/labels",
        "/info",
        "/models",
        "/analysis",
        "/tree",
        "/metrics",
    )
)


def _json(value: Any) -> Response:
    content = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Response(content, media_type="application/json")


def _error_response(error: RequestError) -> Response:
    found = _json({"error": error.sentence})
    found.status_code = error.status
    found.headers.update(error.headers)
    return found


async def _answer_request_error(request: Request, error: Any) -> Response:
    return _error_response(error)


async def _answer_http_error(request: Request, error: Any) -> Response:
    sentences = {
        404: "there is no such path; /docs lists the paths.",
        405: f"the method {request.method[:20]} does not fit this path; /docs lists the paths.",
    }
    sentence = sentences.get(error.status_code, str(error.detail))
    return _error_response(RequestError(error.status_code, sentence, dict(error.headers or {})))


def _query(request: Request, known: Sequence[str]) -> dict[str, str]:
    """Return the query of a request; an unknown or repeated field is an error."""
    found = request.query_params.multi_items()
    for name, _ in found:
        if name not in known:
            fields = ", ".join(known) if known else "none"
            raise RequestError(422, f"the query field {name[:40]!r} is unknown; the fields are: {fields}.")
    if len(dict(found)) < len(found):
        raise RequestError(422, "a query field is given twice; give each once.")
    return dict(found)


def _whole_number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20
    if not is_number or not low <= int(text) <= high:
        raise RequestError(422, f"{name} is {text[:40]!r}; it must be a whole number from {low} to {high}.")
    return int(text)


def _version() -> str:
    try:
        return version("extremax")
    except PackageNotFoundError:  # run from a source folder
        return "unknown"
