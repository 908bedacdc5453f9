"""Sweeps in an object store: `s3://bucket/sweep`, or any other address that fsspec opens.

What a run writes is staged on the local disk and uploaded file by file, each complete, the manifest last: an object
store has no renaming, but no half-written objects either. What is read is mirrored without its points: those stay where
they are, and polars reads of them what a question needs. Credentials and endpoints come from the environment, as the
store's own tools read them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweep.errors import BadInput

STAGING = Path("outputs") / "staging"
PARTS = ".remote.json"  # in a mirror's points/: where the parts lie
UPLOAD_EVERY_S = 10.0
NATIVE = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https")  # polars reads these by itself
_NOT_NEEDED = (".png", ".svg", ".npz")
_mirrors: dict[str, Path] = {}  # of this process


def is_remote(path: Path | str) -> bool:
    """Whether a path is an address."""
    return isinstance(path, str) and re.match(r"[a-z][a-z0-9+.-]+://", path) is not None


@contextlib.contextmanager
def _plainly(url: str) -> Iterator[None]:
    """What a store's client says, in one line."""
    try:
        yield
    except BadInput:
        raise
    except ImportError as error:
        raise BadInput(f"{url}: needs {error.name or error}; for s3: pip install 'codesign-sweep[s3]'") from None
    except Exception as error:  # each client has exceptions of its own
        lines = str(error).strip().splitlines()
        raise BadInput(f"{url}: {lines[0] if lines else type(error).__name__}") from None


def _open(url: str) -> tuple[Any, str]:
    """A file system and the path in it."""
    import fsspec

    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return fs, str(root).rstrip("/")


def _found(fs: Any, root: str) -> dict[str, int]:
    """Files below a path and their sizes, by relative name."""
    if not fs.exists(root):
        return {}
    listed = fs.find(root, detail=True)
    return {str(p)[len(root) :].lstrip("/"): int(about.get("size") or 0) for p, about in listed.items()}


def read_text(url: str) -> str | None:
    """A small file's text, `None` if there is none. Raises: `BadInput` if the store cannot be reached."""
    with _plainly(url):
        fs, path = _open(url)
        return str(fs.cat_file(path).decode()) if fs.isfile(path) else None


def mirror(url: str) -> Path:
    """A local directory with what lies at an address, but for the points of sweeps, which are listed.

    It goes when the process ends. Raises: `BadInput` if nothing is there, or the store cannot be reached.
    """
    url = url.rstrip("/")
    if url in _mirrors:
        return _mirrors[url]
    with _plainly(url):
        fs, root = _open(url)
        found = _found(fs, root)
        if not found:
            raise BadInput(f"{url}: nothing is there")
        temporary = Path(tempfile.mkdtemp(prefix="codesign-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        local = temporary / url.rpartition("/")[2]
        if fs.isfile(root):
            fs.get_file(root, str(local))
        else:
            copy(fs, root, url, local, found)
    _mirrors[url] = local
    return local


def copy(fs: Any, root: str, url: str, local: Path, found: dict[str, int]) -> None:
    """Files of sweeps but for pictures, states and points; of these the addresses."""
    parts: dict[Path, list[str]] = {}
    local.mkdir(parents=True, exist_ok=True)
    for name in found:
        path = local / name
        points = next((p for p in path.parents if p.name == "points"), None)
        if points is not None and path.suffix == ".parquet":
            parts.setdefault(points, []).append(f"{url}/{name}")
        elif path.suffix not in _NOT_NEEDED:
            path.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(f"{root}/{name}", str(path))
    for directory, addresses in parts.items():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / PARTS).write_text(json.dumps(sorted(addresses)))


def address(path: Path) -> str:
    """A path as a person knows it: of a mirror, the address that it mirrors."""
    for url, local in _mirrors.items():
        if path.resolve().is_relative_to(local.resolve()):
            return f"{url}/{path.resolve().relative_to(local.resolve()).as_posix()}".removesuffix("/.")
    return str(path)


def parts(points: Path) -> list[str] | None:
    """Addresses of the parts that a mirrored `points/` stands for; `None` for a directory that has its own."""
    file = points / PARTS
    return list(json.loads(file.read_text())) if file.is_file() else None


def source(url: str) -> tuple[Any, dict[str, str]]:
    """What polars scans, and with which options: an address it knows, else an open file."""
    if url.split("://")[0] in NATIVE:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        options = {"aws_endpoint_url": endpoint, "aws_allow_http": "true"} if endpoint.startswith("http://") else {}
        return url, options
    return opened(url), {}


def opened(url: str) -> Any:
    """An address as an open binary file. Raises: `OSError`, `BadInput`."""
    with _plainly(url):
        fs, path = _open(url)
        return fs.open(path, "rb")


class Stage:
    """A local directory whose complete files go to an address."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.directory = STAGING / hashlib.sha256(self.url.encode()).hexdigest()[:16]
        self.sent: dict[str, tuple[int, int]] = {}  # size and time of change of what was uploaded or fetched
        self.at = time.monotonic()

    def claim(self, sha256: str) -> None:
        """Say which configuration the address holds, before anything is computed.

        Raises: `BadInput` if it holds another one, or cannot be written to.
        """
        held = read_text(f"{self.url}/config.sha256")
        if held is not None and held.strip() != sha256:
            raise BadInput(f"output={self.url}: holds points of another configuration; choose another one")
        with _plainly(self.url):
            fs, root = _open(self.url)
            if "file" in fs.protocol:
                fs.makedirs(root, exist_ok=True)
            fs.pipe_file(f"{root}/config.sha256", f"{sha256}\n".encode())

    def fetch(self, *, points: bool) -> None:
        """Bring what is there already: an interrupted run's parts, or of a finished one all but the points."""
        with _plainly(self.url):
            fs, root = _open(self.url)
            found = _found(fs, root)
            if not points:
                copy(fs, root, self.url, self.directory, found)
            for name in found if points else ():
                path = self.directory / name
                if path.exists() or name == "manifest.json":  # what is here is at least as new
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(f"{root}/{name}", str(path.with_name(f".{path.name}.tmp")))
                os.replace(path.with_name(f".{path.name}.tmp"), path)
                self.sent[name] = self._mark(path)
            for name, size in found.items():  # a part that was sent before
                path = self.directory / name
                if path.suffix == ".parquet" and path.is_file() and path.stat().st_size == size:
                    self.sent[name] = self._mark(path)

    @staticmethod
    def _mark(path: Path) -> tuple[int, int]:
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns

    def push(self, *, now: bool = False) -> None:
        """Upload files that are new or have changed, the manifest last; at most every few seconds unless `now`."""
        if not now and time.monotonic() - self.at < UPLOAD_EVERY_S:
            return
        with _plainly(self.url):
            fs, root = _open(self.url)
            files = [p for p in self.directory.rglob("*") if p.is_file() and not _is_temporary(p)]
            for path in sorted(files, key=lambda p: (p.name == "manifest.json", p)):
                name = path.relative_to(self.directory).as_posix()
                mark = self._mark(path)
                if self.sent.get(name) == mark:
                    continue
                if "file" in fs.protocol:  # others have no directories, and would make a bucket
                    fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
                fs.put_file(str(path), f"{root}/{name}")
                self.sent[name] = mark
            state = "state.npz"
            if (self.directory / "manifest.json").is_file() and state in _found(fs, root):
                fs.rm_file(f"{root}/{state}")
        self.at = time.monotonic()

    def clear(self) -> None:
        """Remove the local copy."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            STAGING.rmdir()


def _is_temporary(path: Path) -> bool:
    return path.name == PARTS or (path.name.startswith(".") and path.suffix == ".tmp")
