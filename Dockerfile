# Serves a run directory, mounted at /model, as a user without rights:
#
#     docker build --tag heatsmooth .
#     docker run --rm --read-only --tmpfs /tmp --publish 127.0.0.1:8000:8000 --volume "$PWD/runs/noisy:/model:ro" heatsmooth --sigma 0.25
#
# See docs/serve.md.
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 HOME=/tmp MPLCONFIGDIR=/tmp
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[serve]' \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin heatsmooth
WORKDIR /tmp
USER 10001

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["heatsmooth", "serve", "--from", "/model", "--host", "0.0.0.0", "--port", "8000", "--expose"]
