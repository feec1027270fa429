"""Keys and certificates of this machine's own, for TLS on its loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a key and its self-signed certificate for 127.0.0.1 and localhost, in PEM, and return
    the files."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "key", folder / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return key, certificate
