"""What pyproject.toml cannot say: the popef that is needed is the one of the very same version."""

from pathlib import Path

from setuptools import setup

VERSION = Path(__file__).with_name("popef").joinpath("VERSION").read_text(encoding="utf-8").strip()

setup(
    install_requires=[
        f"popef=={VERSION}",
        # Bounded above where a major version has broken this project: numpy 2 the binding of Triton's stub,
        # protobuf 5 and 6 what older generated code was allowed (tritonclient, which has most of it, says the
        # same).
        "numpy>=1.23.5,<3",
        "protobuf>=4.25.1,<7",
        "onnx>=1.16",
        "onnxruntime>=1.18",
        "rich>=13",
        # MIT, 1 MiB: reads the files of --config_yaml.
        "pyyaml>=6",
        # Apache-2.0 and BSD-2-Clause, pure Python: writes the page of metrics of `poplar-triton serve`.
        "prometheus-client>=0.17",
        # MPL-2.0, 60 KiB, needs nothing: writes the shells' completion scripts out of argparse, as the real
        # poprt does with it.
        "shtab>=1.7",
        # BSD-3-Clause, 1 MiB, with gRPC (Apache-2.0) 20 MiB: Triton's own message of a model configuration,
        # which poprt writes.
        "tritonclient[grpc]>=2.50",
    ]
)
