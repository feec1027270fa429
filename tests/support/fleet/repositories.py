"""Model repositories of servers: a folder, or an S3 store that can be stopped and started again."""

from __future__ import annotations

import http.client
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from server_processes import HOST, Program, choose_ports
from waiting import wait_until

from fleet.models import Model, write_version
from fleet.servers import ASK_SECONDS
from fleet.tools import Tools


class Repository(Protocol):
    """A model repository; `url` and `environment` are for `poplar-triton serve`."""

    @property
    def url(self) -> str | Path:
        """The folder, or the address in a store."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that a server needs to access the repository."""

    def add_version(self, folder: Path, version: int) -> None:
        """Add a version of the model folder of that name, atomically."""

    def remove_version(self, model: str, version: int) -> None:
        """Remove a version from the repository."""


def fill(repository: Repository, models: Sequence[Model]) -> None:
    """Write version 1 of each model."""
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            repository.add_version(write_version(Path(folder, model.name), model, 1), 1)


class LocalRepository:
    """A folder."""

    environment: Mapping[str, str] = {}

    def __init__(self, url: Path) -> None:
        self.url = url
        url.mkdir()

    def add_version(self, folder: Path, version: int) -> None:
        """Add a version; see Repository."""
        target = self.url / folder.name
        target.mkdir(exist_ok=True)
        shutil.copyfile(folder / "config.pbtxt", target / "config.pbtxt")
        shutil.copytree(folder / str(version), target / f".{version}")
        (target / f".{version}").rename(target / str(version))

    def remove_version(self, model: str, version: int) -> None:
        """Remove a version; see Repository."""
        (self.url / model / str(version)).rename(self.url / model / f".{version}")
        shutil.rmtree(self.url / model / f".{version}")


class Store(Program):
    """SeaweedFS with an empty bucket, as a context manager: ready on entry."""

    # Triton signs its requests. The store takes requests of anybody, unsigned ones too.
    environment: Mapping[str, str] = {
        "AWS_ACCESS_KEY_ID": "anyone",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def __init__(self, tools: Tools, folder: Path) -> None:
        (folder / "store").mkdir()
        names = ("s3", "master", "volume", "filer")
        ports = choose_ports(2 * len(names))
        self._address = (HOST, ports[0])
        options: dict[str, object] = {
            "dir": folder / "store",
            "ip": HOST,
            "ip.bind": HOST,
            "volume.max": 20,
            "master.volumeSizeLimitMB": 64,
            "master.telemetry": "false",
            "s3.iam": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        for name, port, grpc_port in zip(names, ports[::2], ports[1::2], strict=True):
            options |= {f"{name}.port": port, f"{name}.port.grpc": grpc_port}
        words = [f"-{name}={value}" for name, value in options.items()]
        super().__init__("store", [tools.weed, "server", "-s3", *words], folder)

    @property
    def url(self) -> str:
        """See Repository."""
        host, port = self._address
        return f"s3://{host}:{port}/bucket/models"

    def start(self) -> None:
        """Start it, and wait until it takes files."""
        super().start()
        wait_until(
            lambda: self._ask("PUT", "/bucket") and self._ask("PUT", "/bucket/probe", b"x"),
            "a store",
        )

    def add_version(self, folder: Path, version: int) -> None:
        """Add a version; see Repository. The executable comes last: without it the version is not
        complete."""
        files = [file for file in (folder / str(version)).iterdir() if file.suffix != ".popef"]
        files += (folder / str(version)).glob("*.popef")
        for file in (folder / "config.pbtxt", *files):
            path = f"/bucket/models/{file.relative_to(folder.parent)}"
            assert self._ask("PUT", path, file.read_bytes()), f"{path} is not taken; see {self.log}"

    def remove_version(self, model: str, version: int) -> None:
        """Remove a version; see Repository.

        The empty name is that of the folder: SeaweedFS lists it for a while yet. Triton looks for
        newer files only, so a remaining one is made newer: the configuration is copied onto itself.
        """
        folder = f"/bucket/models/{model}"
        for name in ("executable.popef", "name_map.json", ""):
            assert self._ask("DELETE", f"{folder}/{version}/{name}"), (
                f"{name} does not go; see {self.log}"
            )
        config = f"{folder}/config.pbtxt"
        headers = {"X-Amz-Copy-Source": config, "X-Amz-Metadata-Directive": "REPLACE"}
        assert self._ask("PUT", config, headers=headers), (
            f"{config} stays as it was; see {self.log}"
        )

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> bool:
        """Send a request; return whether it succeeds or its effect is already there."""
        with closing(http.client.HTTPConnection(*self._address, timeout=ASK_SECONDS)) as connection:
            try:
                connection.request(method, path, body, dict(headers))
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return False
        return status in (http.client.OK, http.client.NO_CONTENT, http.client.CONFLICT)
