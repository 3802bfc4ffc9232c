"""The ASGI application: the paths, and what each of them answers."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException as StarletteHTTPException

from extremax.serve import questions, schemas
from extremax.serve.answers import busy, error_response, json_response
from extremax.serve.batching import Batcher
from extremax.serve.guard import OPEN, Guard
from extremax.serve.metrics import Metrics
from extremax.serve.models import Predict, ServedModel, Slot, watch
from extremax.serve.settings import ServeConfig
from extremax.storage.folder import package_version

Log = Callable[[str], None]
T = TypeVar("T")
_STATIC = Path(__file__).with_name("static")
_PAGES = {"/": "index.html", "/model": "model.html", "/docs": "docs.html", "/favicon.ico": "favicon.svg"}
_HIDDEN = ("/ping", "/openapi.json")  # paths that the document leaves out
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EXPLAINED = 3  # labels of an explanation
_EXPLAIN_CALLS = 4  # explanations at the same time; each takes up to ten times as long as a prediction
_LIST_CALLS = 4  # lists of labels that are made at the same time; the others wait
_PAGE_CALLS = 4  # calls of a model's page at the same time; its first one may take a minute
_ERRORS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    404: "There is no such model, label or node.",
    408: "The body did not arrive in time.",
    413: "The body, a text or the list is too long.",
    422: "A field is missing, unknown, or not what this model takes.",
    503: "The queue is full, or the server is starting or stopping; try again.",
    504: "The answer took too long.",
}
_GET_ERRORS = (401, 404, 422, 504)
_DESCRIPTION = (
    "Classifiers over very many classes. /predict takes the schema of Hugging Face's text classification."
    " Every error is an object with one sentence."
)


def create_app(
    models: Mapping[str, str | os.PathLike[str]] | Sequence[Slot],
    config: ServeConfig | None = None,
    *,
    log: Log = lambda text: None,
) -> FastAPI:
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
    application = Application(slots, config or ServeConfig(), log)
    application.load()
    return application.build()


class Application:
    """What all requests share."""

    def __init__(self, slots: Sequence[Slot], config: ServeConfig, log: Log) -> None:
        if not slots:
            raise ValueError("there is no model to serve; give at least one folder.")
        self.slots: dict[str, Slot] = {}
        for slot in slots:
            if self.slots.setdefault(slot.name, slot) is not slot:
                raise ValueError(f"two models have the name {slot.name}; name them: NAME=FOLDER.")
        self.default, self.config, self.log = slots[0], config, log
        self.metrics = Metrics()
        self.batcher = Batcher(config, self.metrics)
        self.is_ready = self.is_stopping = False
        self.page_calls = asyncio.Semaphore(_PAGE_CALLS)
        self.explain_calls = asyncio.Semaphore(_EXPLAIN_CALLS)
        self.list_calls = asyncio.Semaphore(_LIST_CALLS)
        mimetypes.add_type("text/javascript", ".js")  # the registry of Windows may say otherwise
        self.static = _Files(directory=_STATIC)

    def load(self) -> None:
        """Load the models that are not loaded yet."""
        for slot in self.slots.values():
            slot.log = self.log
            if slot.current is None:
                slot.load(self.config, self.prepare)
            else:
                self.prepare(slot.current)

    def prepare(self, model: ServedModel) -> None:
        """Connect a model that was just loaded to the metrics, and give it a monitor."""
        model.on_answer = self.metrics.count_rows
        if self.config.monitor_alpha > 0:
            with contextlib.suppress(ValueError):  # a model without held-out rows
                model.monitor = model.clf.monitor(alpha=self.config.monitor_alpha)

    # -- the application -----------------------------------------------------------------------------------

    def build(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(
            title="extremax",
            version=package_version(),
            description=_DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            lifespan=self.lifespan,
            generate_unique_id_function=_operation_id,
            exception_handlers={
                StarletteHTTPException: _answer_http_error,
                RequestValidationError: _answer_bad_query,
            },
        )
        asked = self._questions()
        app.include_router(asked)
        app.include_router(asked, prefix="/models/{name}", dependencies=[Depends(_named_model)])
        for path, call, answer, errors in (
            ("/models", self.models, schemas.Models, (401, 422)),
            ("/health", self.health, schemas.Status, ()),
            ("/ready", self.ready, schemas.Status, (503,)),
        ):
            app.add_api_route(path, call, response_model=answer, responses=_errors(*errors))
        about: Any = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_errors(401)}
        app.add_api_route("/metrics", self.show_metrics, response_class=Response, responses=about)
        app.add_api_route("/ping", self.health, include_in_schema=False)
        for path in _PAGES:
            app.add_api_route(path, self.show_page, include_in_schema=False)
        app.mount("/static", self.static)
        document = app.openapi()  # FastAPI keeps it
        self._complete(document)
        app.add_middleware(Guard, application=self, paths=[*_PAGES, *document["paths"], *_HIDDEN])
        app.state.stop = self.stop
        return app

    def _questions(self) -> APIRouter:
        """Return the paths that each model has."""
        router = APIRouter(dependencies=[Depends(_refuse_repeated)])
        for path, call, body, answer in (
            ("/predict", self.predict, schemas.Question, schemas.Answer),
            ("/invocations", self.predict, schemas.Question, schemas.Answer),
            ("/explain", self.explain, schemas.WhyQuestion, schemas.Explanation),
        ):
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
            router.add_api_route(
                path,
                call,
                methods=["POST"],
                response_model=answer,
                responses=_errors(*_ERRORS),
                openapi_extra={"requestBody": {"required": True, "content": content}},
            )
        lookups: tuple[tuple[str, Callable[..., Any], Any], ...] = (
            ("/labels", self.labels, schemas.Labels),
            ("/info", self.info, schemas.Info),
            ("/analysis", self.analysis, dict[str, Any]),
            ("/tree", self.tree, dict[str, Any]),
        )
        for path, lookup, found in lookups:
            router.add_api_route(path, lookup, response_model=found, responses=_errors(*_GET_ERRORS))
        return router

    def _complete(self, document: dict[str, Any]) -> None:
        """Add bodies and keys to the OpenAPI document."""
        bodies: Any = [(schemas.Question, "validation"), (schemas.WhyQuestion, "validation")]
        _, found = models_json_schema(bodies, ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= found["$defs"]
        if self.config.api_key is not None:
            document["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            document["security"] = [{"bearer": []}, {"header": []}]
            for path in OPEN & set(document["paths"]):
                document["paths"][path]["get"]["security"] = []

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
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

    # -- questions -----------------------------------------------------------------------------------------

    def find(self, request: Request, named: str | None = None) -> ServedModel:
        """Return the model that a path, a query or a body names, or answer 404; all names must agree."""
        given = request.path_params.get("name"), request.query_params.get("model"), named
        names = {name for name in given if name is not None} or {self.default.name}
        if len(names) > 1:
            raise HTTPException(422, "the request names two models; name one, in the path or in the body.")
        name = names.pop()
        model = self.slots[name].current if name in self.slots else None
        if model is None:
            known = ", ".join(self.slots)
            raise HTTPException(404, f"there is no model {name[:80]!r}; the models are {known}.")
        return model

    async def predict(self, request: Request) -> Response:
        """Find the most probable labels of texts or vectors."""
        question = questions.read_body(await self.read_body(request), schemas.Question)
        model, parameters = self.find(request, question.model), question.parameters or schemas.Parameters()
        rows = questions.read_rows(question.inputs, model, self.config)
        top_k = min(questions.read_top_k(parameters, self.config.top_k, self.config), model.n_classes)
        search = questions.read_search(parameters, model, self.config)
        among = questions.read_among(parameters, model, self.config)
        top_k = min(top_k, len(among)) if among else top_k
        as_log = parameters.function_to_apply == "none"
        work = Predict(model, top_k, search, rows.kind, as_log, among)
        answers = await self.batcher.run(work, rows.rows)
        content = answers[0] if rows.is_single else b"[" + b",".join(answers) + b"]"
        return Response(content, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        """Explain the first label of one text or vector."""
        question = questions.read_body(await self.read_body(request), schemas.WhyQuestion)
        model = self.find(request, question.model)
        rows = questions.read_rows(question.inputs, model, self.config)
        if not rows.is_single:
            raise HTTPException(422, "inputs is a list of rows; /explain takes one text or one vector.")
        parameters = question.parameters or schemas.WhyParameters()
        top_k = questions.read_top_k(parameters, _EXPLAINED, self.config)
        if self.explain_calls.locked():
            raise busy(f"{_EXPLAIN_CALLS} explanations are being made; try again in a second.")
        row, kind = rows.rows[0], rows.kind
        return await _in_own_thread(
            self.explain_calls, lambda: json_response(model.explain(row, kind, top_k))
        )

    async def read_body(self, request: Request) -> bytes:
        """Return the body; answer 413 to one that is too long, and stop reading."""
        limit = self.config.max_body_bytes
        too_long = HTTPException(
            413, f"the body is longer than {limit:,} bytes; send fewer texts in one request."
        )
        stated = request.headers.get("content-length", "0")
        if stated.isdigit() and int(stated[:20]) > limit:
            raise too_long
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_long
        request.state.is_read = True
        return bytes(body)

    async def labels(self, request: Request, query: Annotated[schemas.LabelsQuery, Query()]) -> Response:
        """List labels by the beginning of their names."""
        model = self.find(request)
        words = query.prefix, query.contains, query.limit
        return json_response(await _in_own_thread(self.list_calls, lambda: model.labels(*words)))

    async def info(self, request: Request, query: Annotated[schemas.ModelQuery, Query()]) -> Response:
        """Describe the model and the limits of the server."""
        model, config = self.find(request), self.config
        slot = self.slots[model.name]
        about = await asyncio.to_thread(model.info)
        about |= {
            "version": package_version(),
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
        }
        return json_response(about)

    async def analysis(self, request: Request, query: Annotated[schemas.ModelQuery, Query()]) -> Response:
        """Return the figures of the model's page."""
        model = self.find(request)
        return json_response(await self.of_page(lambda: model.page().overview()))

    async def tree(self, request: Request, query: Annotated[schemas.TreeQuery, Query()]) -> Response:
        """Return nodes of the label tree: those below a node, the path of a label, or a search."""
        model, label, text = self.find(request), query.label, query.search
        if label is not None:
            number = await asyncio.to_thread(model.find_label, label)
            return json_response({"path": await self.of_page(lambda: model.page().path(number))})
        if text is not None:
            return json_response(await self.of_page(lambda: model.page().search(text, query.limit)))
        return json_response(await self.of_page(lambda: model.page().tree(query.node, query.depth)))

    async def of_page(self, call: Callable[[], Any]) -> Any:
        """Return what the page of a model has, or answer 404."""
        try:
            return await _in_own_thread(self.page_calls, call)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None

    # -- the server itself ---------------------------------------------------------------------------------

    async def models(self, query: Annotated[schemas.NoQuery, Query()]) -> Response:
        """List the models."""
        return json_response({"models": list(self.slots), "default": self.default.name})

    async def health(self) -> Response:
        """Say that the process is alive."""
        return json_response({"status": "alive"})

    async def ready(self) -> Response:
        """Say whether the models answer."""
        if not self.is_ready:
            raise busy("the server is starting or stopping.")
        return json_response({"status": "ready"})

    async def show_metrics(self) -> Response:
        """Return figures of the server for Prometheus."""
        slots = list(self.slots.values())
        text = await asyncio.to_thread(self.metrics.text, self.batcher.n_queued, slots)
        return Response(text, headers={"Content-Type": _METRICS_TYPE})

    async def show_page(self, request: Request) -> Response:
        """Return a page."""
        return await self.static.get_response(_PAGES[request.url.path], request.scope)


class _Files(StaticFiles):
    """The files of the pages; none has a null byte in its name, which not every Starlette refuses."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if "\0" in path else super().lookup_path(path)


async def _in_own_thread(places: asyncio.Semaphore, call: Callable[[], T]) -> T:
    """Return the result of a long call, made in a thread that a stopping server does not wait for.

    A request that is given up does not end its thread, which keeps its place until it is done.
    """
    loop = asyncio.get_running_loop()

    def leave(done: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(places.release)

    await places.acquire()
    done: Future[T] = Future()
    done.add_done_callback(leave)
    done.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def work() -> None:
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    try:
        threading.Thread(target=work, name="extremax-long", daemon=True).start()
    except RuntimeError as error:  # there are no more threads
        done.set_exception(error)
    return await asyncio.wrap_future(done)


async def _named_model(name: str) -> None:
    """Name of the model, for the document; `Application.find` reads it."""


async def _refuse_repeated(request: Request) -> None:
    """Answer 422 to a query field that is given twice."""
    if len(request.query_params) < len(request.query_params.multi_items()):
        raise HTTPException(422, "a query field is given twice; give each once.")


async def _answer_bad_query(request: Request, error: Any) -> Response:
    return error_response(HTTPException(422, schemas.explain_fault(error.errors()[0])))


async def _answer_http_error(request: Request, error: Any) -> Response:
    sentences = {
        "Not Found": "there is no such path; /docs lists the paths.",
        "Method Not Allowed": f"the method {request.method[:20]} does not fit this path; /docs lists the"
        " paths.",
    }
    sentence = sentences.get(error.detail, error.detail)
    return error_response(HTTPException(error.status_code, sentence, error.headers))


def _operation_id(route: APIRoute) -> str:
    return route.path.rsplit("/", 1)[-1] + ("_of" if "{name}" in route.path else "")


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return errors for the document."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        found[status] = {"model": schemas.Error, "description": _ERRORS[status]}
        if status == 503:
            about = {"schema": {"type": "string"}, "description": "Seconds to wait."}
            found[status]["headers"] = {"Retry-After": about}
    return found
