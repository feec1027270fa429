# NVIDIA's Triton with the Poplar backend for simulated IPUs, under the supervisor.
#
#   docker build -t poplar-triton:0.2.0 .
#   docker run --rm --shm-size=1g -p 127.0.0.1:8000:8000 -p 127.0.0.1:8001:8001 \
#     -v "$PWD/model_repository:/models:ro" poplar-triton:0.2.0
#
# Reasons for this base image: since 25.05 Triton completes running gRPC calls when it stops; since 25.08 it checks
# shared memory that clients register more strictly; since 25.12 a model whose process has died is not ready; since
# 26.03 it calls the model's is_ready(); since 26.04 the server's readiness includes dead processes; since 26.05
# clients' shared memory is disabled by default. Its stub is built for Python 3.12, the image's version.
FROM nvcr.io/nvidia/tritonserver:26.07-py3 AS triton

# Compiles the kernels. The compiler does not become part of the final image.
FROM triton AS wheels
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /opt/poplar-triton
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels \
    /opt/poplar-triton/popef /opt/poplar-triton

FROM triton
# tini is the first process and reaps orphaned processes. The version is the distribution's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

COPY --from=wheels /wheels /opt/poplar-triton
RUN python3 -m pip install --no-cache-dir \
        /opt/poplar-triton/popef-*.whl "$(echo /opt/poplar-triton/poplar_triton-*.whl)[tfserving]" \
    && python3 -c 'from simipu.kernels import find_kernels; assert find_kernels().are_there' \
    && poplar-triton install /opt/tritonserver/backends

# Prevents heap fragmentation with many small requests.
ENV MALLOC_MMAP_THRESHOLD_=131072

# The user triton-server of the base image. The server writes to /tmp and /dev/shm only.
USER 1000:1000
EXPOSE 8000 8001 8002 8003

# Unhealthy after one minute without readiness. The supervisor recovers faster than that.
HEALTHCHECK --start-period=300s --interval=5s --timeout=3s --retries=12 \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:8003/ready"]

# Arguments replace CMD: first the model repository, after `--` options of tritonserver. Loading models over the API
# requires a key that only the supervisor knows. To use your own key, set --http-restricted-api and
# --grpc-restricted-protocol as in deploy/compose.yaml.
ENTRYPOINT ["tini", "--", "poplar-triton", "serve", "--server", "/opt/tritonserver/bin/tritonserver"]
CMD ["/models", \
    "--http-port=8000", "--grpc-port=8001", "--metrics-port=8002", \
    "--health-port=8003", "--health-address=0.0.0.0", \
    "--drain-seconds=5", "--on-dead-stub=reload", "--restart=3", \
    "--", "--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0"]
