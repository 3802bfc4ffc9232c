"""Limits and switches of the server, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeConfig:
    """Limits and switches of the server.

    Attributes
    ----------
    max_body_bytes : int
        Longest body of a request.
    max_texts : int
        Texts, or vectors, of one request.
    max_characters : int
        Longest text.
    max_top_k : int
        Labels per text.
    max_seconds : float
        Time from the head of a request to its answer; a body that takes longer to arrive is given up too.
    head_seconds : float
        Time for the head of a request to arrive.
    idle_seconds : float
        Time that a connection may stay open between two requests.
    stop_seconds : float
        Time that running requests have to end when the server stops.
    max_connections : int
        Open connections; more are answered with 503.
    max_queue_rows : int
        Texts that may wait; a request beyond is answered with 503.
    max_batch_rows : int
        Texts of several requests that the model scores in one call; those of one request stay together.
    short_rows : int
        Requests of at most so many texts do not wait for longer ones.
    reload_seconds : float
        Time between two looks at the model folders; 0 for never.
    search : str
        Search of requests that name none.
    top_k : int
        Labels per text of requests that do not say.
    api_key : str, optional
        Key that requests must carry.
    hosts : tuple of str, optional
        Names in the header Host that requests may have; None for any. A page from elsewhere whose name leads
        to this machine asks with its own name.
    monitor_alpha : float
        False-alarm rate of the test for drift; 0 for no test.
    """

    max_body_bytes: int = 4 << 20
    max_texts: int = 1024
    max_characters: int = 20_000
    max_top_k: int = 100
    max_seconds: float = 30.0
    head_seconds: float = 10.0
    idle_seconds: float = 30.0
    stop_seconds: float = 10.0
    max_connections: int = 1000
    max_queue_rows: int = 8192
    max_batch_rows: int = 128
    short_rows: int = 8
    reload_seconds: float = 1.0
    search: str = "exact"
    top_k: int = 5
    api_key: str | None = None
    hosts: tuple[str, ...] | None = None
    monitor_alpha: float = 0.01

    def __post_init__(self) -> None:
        counts = ("max_body_bytes", "max_texts", "max_characters", "max_top_k", "max_connections")
        for name in (*counts, "max_queue_rows", "max_batch_rows", "short_rows", "top_k"):
            if vars(self)[name] < 1:
                raise ValueError(f"{name} is {vars(self)[name]}; it must be at least 1.")
        for name in ("max_seconds", "head_seconds", "idle_seconds", "stop_seconds"):
            if not vars(self)[name] > 0:
                raise ValueError(f"{name} is {vars(self)[name]}; it must be above 0.")
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("the API key is empty; give a key of at least one character, or none.")
