"""Prometheus metrics of a server. User text is never recorded."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("request_seconds", "Time to answer", ["path"], registry=self.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batch = Histogram(
            "batch_requests", "Requests in a batch", ["model"], buckets=sizes, registry=self.registry
        )
        tokens = tuple(2**n for n in range(4, 15))
        self.tokens = Histogram("batch_tokens", "Tokens in a batch", ["model"], buckets=tokens, registry=self.registry)
        self.model_seconds = Histogram("batch_seconds", "Time in the model", ["model"], registry=self.registry)
        self.queue = Gauge("tokens_in_work", "Tokens waiting or running", ["model"], registry=self.registry)
        self.restarts = Gauge("worker_restarts", "Restarts of the worker", ["model"], registry=self.registry)

    def observer(self, model: str) -> Callable[[int, int, float], None]:
        """Return the function that a model's batcher calls after each batch."""

        def observe(requests: int, tokens: int, seconds: float) -> None:
            self.batch.labels(model).observe(requests)
            self.tokens.labels(model).observe(tokens)
            self.model_seconds.labels(model).observe(seconds)

        return observe
