# NVIDIA's Triton with the Poplar backend for simulated IPUs, under the supervisor.
#
#   docker build -t poplar-triton:0.2.0 .
#   docker run --rm --shm-size=1g -p 127.0.0.1:8000:8000 -p 127.0.0.1:8001:8001 \
#     -v "$PWD/model_repository:/models:ro" poplar-triton:0.2.0
#
# Why this base: from 25.05 on Triton lets gRPC calls under way finish when it stops, from 25.08 on it looks
# twice at shared memory that clients register, from 25.12 on a model whose process has died is not ready,
# from 26.03 on it asks the model's is_ready(), from 26.04 on the server's own readiness knows dead processes,
# too, and from 26.05 on clients have no shared memory unless asked for. Its stub is built for Python 3.12,
# the image's.
FROM nvcr.io/nvidia/tritonserver:26.07-py3 AS triton

# Compiles the kernels; what it takes for that stays behind.
FROM triton AS wheels
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /opt/poplar-triton
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels \
    /opt/poplar-triton/popef /opt/poplar-triton

FROM triton
# As the first process it buries what nobody else does. Of whatever version the distribution has.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

COPY --from=wheels /wheels /opt/poplar-triton
RUN python3 -m pip install --no-cache-dir \
        /opt/poplar-triton/popef-*.whl "$(echo /opt/poplar-triton/poplar_triton-*.whl)[tfserving]" \
    && python3 -c 'from simipu.kernels import find_kernels; assert find_kernels().are_there' \
    && poplar-triton install /opt/tritonserver/backends

# Keeps the heap of a server of many small requests flat.
ENV MALLOC_MMAP_THRESHOLD_=131072

# triton-server, which the base has. It writes to /tmp and /dev/shm only.
USER 1000:1000
EXPOSE 8000 8001 8002 8003

# What is not ready for a minute needs somebody: the supervisor heals faster.
HEALTHCHECK --start-period=300s --interval=5s --timeout=3s --retries=12 \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8003/ready"]

# Other arguments take the place of those of CMD: the model repository first, tritonserver's own after the
# `--`. Loading models over the API asks for a key that only the supervisor knows; for one of your own:
# --http-restricted-api and --grpc-restricted-protocol, as in deploy/compose.yaml.
ENTRYPOINT ["tini", "--", "poplar-triton", "serve", "--server", "/opt/tritonserver/bin/tritonserver"]
CMD ["/models", \
    "--http-port=8000", "--grpc-port=8001", "--metrics-port=8002", \
    "--health-port=8003", "--health-address=0.0.0.0", \
    "--drain-seconds=5", "--on-dead-stub=reload", "--restart=3", \
    "--", "--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0"]
