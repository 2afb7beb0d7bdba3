# The server (and every other command that needs no PyTorch) as a container, for x86-64 and ARM64; docs/containers.md.
#
#     docker build -t onnx-textgen .
#     docker run --rm -p 127.0.0.1:8000:8000 -e ONNX_TEXTGEN_API_KEY=secret onnx-textgen
ARG BASE=docker.io/library/python:3.13-slim-bookworm

FROM ${BASE} AS build
# The compiler is for the kernels, which exist for x86-64.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# pip stays: `onnx-textgen pull` fetches models of the package index by it.
RUN python3 -m venv /opt/onnx-textgen && /opt/onnx-textgen/bin/pip install --no-cache-dir ".[audio,images,serve]"

FROM ${BASE}
COPY --from=build /opt/onnx-textgen /opt/onnx-textgen
# A number, so that Kubernetes can tell that it is not root. It owns the one folder that is written to: the cache of fetched models.
RUN mkdir /models && chown 10001:10001 /models
ENV PATH=/opt/onnx-textgen/bin:$PATH ONNX_TEXTGEN_CACHE=/models PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["onnx-textgen"]
CMD ["serve", "--host", "0.0.0.0"]
