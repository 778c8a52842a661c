"""Where checkpoints lie: a folder of this machine, or any place that fsspec reaches. No file is ever seen half written.

A local file is written beside its place, brought to the disk and renamed. Elsewhere a file appears when its upload is
complete, as object stores do it. Which files belong together, a marker says that is written last.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from orch.errors import OrchError

Part = bytes | memoryview
_CHUNK_BYTES = 1 << 24


class Storage(Protocol):
    """Files by names relative to one root; `/` separates folders. Methods raise OSError where the place refuses."""

    root: str

    def write(self, name: str, parts: Iterable[Part]) -> int:
        """Put a file there, whole or not at all; return its bytes."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. FileNotFoundError when there is none."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names directly inside `folder`, sorted; empty when there is no such folder."""

    def remove(self, folder: str) -> None:
        """Remove a folder with all it holds; nothing happens when there is none."""


def storage_of(root: str) -> Storage:
    """Return the storage at `root`, a path or a URL. OrchError (E660): no such protocol, or its package is missing."""
    protocol, found, path = root.partition("://")
    if not found:
        return _Disk(root)
    return _Disk(path) if protocol == "file" else _Remote(root)


class _Disk:
    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def write(self, name: str, parts: Iterable[Part]) -> int:
        path = self._path(name)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=folder, prefix=".tmp-")
        try:
            written = 0
            for part in parts:
                view = memoryview(part).cast("B")
                for start in range(0, len(view), _CHUNK_BYTES):
                    written += _write_all(handle, view[start : start + _CHUNK_BYTES])
            os.fsync(handle)
            os.fchmod(handle, 0o644)
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
        finally:
            os.close(handle)
        _sync_folder(folder)
        return written

    def read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path(folder)) if not name.startswith(".tmp-"))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, folder: str) -> None:
        import shutil

        shutil.rmtree(self._path(folder), ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root


class _Remote:
    def __init__(self, root: str) -> None:
        from fsspec.core import url_to_fs

        self.root = root.rstrip("/")
        try:
            self._fs, self._base = url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise OrchError(f"checkpoints cannot go to {root}: {reason}", code="E660") from error

    def write(self, name: str, parts: Iterable[Part]) -> int:
        path, written = self._path(name), 0
        with _as_os_errors(self.root):
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._fs.open(path, "wb") as file:
                for part in parts:
                    view = memoryview(part).cast("B")
                    for start in range(0, len(view), _CHUNK_BYTES):
                        file.write(view[start : start + _CHUNK_BYTES])
                    written += len(view)
        return written

    def read(self, name: str) -> bytes:
        with _as_os_errors(self.root):
            content: bytes = self._fs.cat_file(self._path(name))
        return content

    def names(self, folder: str = "") -> list[str]:
        with _as_os_errors(self.root):
            try:
                self._fs.invalidate_cache()
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def remove(self, folder: str) -> None:
        with _as_os_errors(self.root), suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base


class _as_os_errors:  # noqa: N801 - used as a statement
    """Turn what a remote file system raises into OSError: clients of object stores have errors of their own."""

    def __init__(self, root: str) -> None:
        self._root = root

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise OSError(f"{self._root}: {reason}") from error


def _write_all(handle: int, view: memoryview) -> int:
    done = 0
    while done < len(view):
        done += os.write(handle, view[done:])
    return done


def _sync_folder(folder: str) -> None:
    """Bring a rename to the disk, where the file system can sync folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
