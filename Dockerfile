# NVIDIA's Triton with the Poplar backend for simulated IPUs.
#
#   docker build -t poplar-triton .
#   docker run --rm --shm-size=1g -p 8000:8000 -p 8001:8001 -p 8002:8002 -v "$PWD/model_repository:/models" poplar-triton
FROM nvcr.io/nvidia/tritonserver:24.10-py3

COPY . /opt/poplar-triton
RUN pip install --no-cache-dir /opt/poplar-triton/popef /opt/poplar-triton && poplar-triton install /opt/tritonserver/backends

EXPOSE 8000 8001 8002
CMD ["tritonserver", "--model-repository=/models"]
