"""Blocks of code of the documents' pages, to be run as a reader would run them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PRINTED = re.compile(
    r"^(?:# (?P<line>.+)|.*(?:[Pp]rint(?:f|ln)?|console\.log)\(.*?\);?\s+(?:#|//) (?P<value>.+))$"
)
"""A printed line, as a comment: at the end of a shell block, or behind the call that prints it."""
RUNNERS = {
    "sh": ("block.sh", "bash -euo pipefail block.sh"),
    "python": ("block.py", f"{shlex.quote(sys.executable)} block.py"),
    "javascript": ("block.mjs", "node block.mjs"),
    "java": ("Ask.java", "java Ask.java"),
    "go": ("block.go", "go run block.go"),
    "cpp": ("block.cc", "g++ -std=c++17 block.cc -lcurl -o block && ./block"),
}
"""File and command of each language whose blocks run."""
_PROBES = {
    "javascript": "node --eval fetch",
    "java": "javac -version",
    "go": "go version",
    "cpp": "g++ -E -x c++ -include curl/curl.h /dev/null",
}
"""Command that succeeds where a language's blocks can run, if they need more than the project."""


@dataclass(frozen=True, slots=True)
class Block:
    """Block of code of a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run; None if it is."""

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    def run(self, folder: Path, environment: Mapping[str, str], ports: Mapping[str, int]) -> str:
        """Run the block in a folder and return what it prints. Fail if a line that it says it prints
        is missing. Skip where the language's compiler or library is not installed."""
        file, command = RUNNERS[self.language]
        probe = _PROBES.get(self.language, "true")
        if _run(probe, folder, environment).returncode != 0:
            pytest.skip(f"{self.name} is not run: `{probe}` fails")
        (folder / file).write_text(move_ports(self.code, ports))
        done = _run(command, folder, environment)
        assert done.returncode == 0, f"{self.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert '{"error":' not in done.stdout, f"{self.name}: {done.stdout[-2000:]}"
        for expected in self.expected():
            pieces = map(re.escape, re.split(r"\.\.\.", expected))
            assert re.search(".*".join(pieces), done.stdout), f"{self.name}: {done.stdout[-2000:]}"
        return done.stdout

    def expected(self) -> list[str]:
        """Return the lines that the page says the block prints; "..." stands for anything."""
        lines = self.code.rstrip().split("\n")
        values = [match["value"] for line in lines if (match := _PRINTED.match(line.strip()))]
        last = _PRINTED.match(lines[-1])
        return [line for line in (*values, last and last["line"]) if line]


def _run(
    command: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def move_ports(code: str, ports: Mapping[str, int]) -> str:
    """Return code whose ports of this machine are others."""
    for port, used_port in ports.items():
        code = re.sub(rf"(127\.0\.0\.1|localhost):{port}\b", rf"\g<1>:{used_port}", code)
    return code


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page whose language runs, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start("code")),
            match["language"],
            match["code"],
            match["reason"],
        )
        for match in _FENCE.finditer(text)
        if match["language"] in RUNNERS
    ]


def iter_commands(page: Path, programs: set[str]) -> Iterator[list[str]]:
    """Yield the words of each command of these programs in a page's shell blocks."""
    for block in read_blocks(page):
        if block.language != "sh":
            continue
        for line in block.code.replace("\\\n", " ").split("\n"):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
            lexer.whitespace_split = True
            words: list[str] = []
            try:
                tokens = list(lexer)
            except ValueError:  # a quote that continues on the next line: none of these commands
                continue
            for word in [*tokens, ";"]:
                if set(word) <= set("|&;<>()"):
                    if words and words[0] in programs:
                        yield words
                    words = []
                else:
                    words.append(word)
