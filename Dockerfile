# An image with Holdfast as its program, for CPUs unless DEVICE names a CUDA of torch's builds: docs/container.md
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY adapters adapters
COPY application application
COPY bootstrap bootstrap
COPY configs configs
COPY domain domain
COPY ports ports
COPY holdfast holdfast
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG DEVICE=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/${DEVICE}
ARG EXTRAS=bnb,datasets,encryption,fast,http,lora,page,parquet,prometheus,s3
# the compiler is that of model.compile
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" 'torch>=2.11,<2.14'
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRAS:+[${EXTRAS}]}"

# runs, tokens, the caches of libraries and temporary files lie in /data, the folder to mount: the rest may be read-only,
# and any user may be chosen with --user
RUN useradd --create-home --uid 1000 holdfast && install --directory --owner holdfast --mode 1777 /data
ENV HOME=/data \
    USER=holdfast \
    XDG_CACHE_HOME=/data/.cache \
    TORCHINDUCTOR_CACHE_DIR=/data/.cache/torchinductor \
    TMPDIR=/data \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["holdfast"]
CMD ["--help"]
