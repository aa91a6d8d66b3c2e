"""What ``/metrics`` tells, as text for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heatsmooth.serving.worker import Worker


class Metrics:
    """The numbers of one server."""

    def __init__(self, worker: Worker) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "heatsmooth_requests", "Requests answered, by path and status.", ["path", "status"], registry=self._registry
        )
        self.images = Counter("heatsmooth_images", "Images accepted.", registry=self._registry)
        present = Gauge("heatsmooth_studies", "Studies that share the network now.", registry=self._registry)
        present.set_function(lambda: worker.present)
        self._samples = Counter("heatsmooth_samples", "Noise samples evaluated.", registry=self._registry)
        self._worker, self._counted = worker, 0
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All numbers now."""
        samples = self._worker.samples
        self._samples.inc(samples - self._counted)
        self._counted = samples
        return generate_latest(self._registry)


class Counting:
    """ASGI middleware that counts the responses; paths that are not in ``known`` count as "other"."""

    def __init__(self, app: ASGIApp, metrics: Metrics, known: frozenset[str]) -> None:
        self._app, self._metrics, self._known = app, metrics, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._known else "other"
                self._metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)
