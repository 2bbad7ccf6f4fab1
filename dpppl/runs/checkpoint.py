"""How far a run has got, in a file, so that a killed run goes on: the same keys, the same numbers, no second charge.

The file is as secret as the data: it holds the run's keys, with which noise can be subtracted, and a digest of the
rows (see `checksum`). It has mode 600 and is deleted when the run is complete.
"""

import contextlib
import hashlib
import hmac
import io
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpppl.errors import CheckpointError, ConfigurationError, warn
from dpppl.jaxprs import is_key
from dpppl.output import replace_file
from dpppl.processes import messages
from dpppl.randomness import chacha
from dpppl.types import Document, Tree

_FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """How far a run has got.

    - **group** - number of the group of chains that runs.
    - **done** - steps of it that are over.
    - **state** - its states after these.
    - **parts** - the records of each of its chunks."""

    group: int
    done: int
    state: Tree
    parts: Sequence[object]


def checked_path(path: object) -> str | os.PathLike[str] | None:
    """The path of a checkpoint, or None. Raises ConfigurationError where no file can be written."""
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"checkpoint is a {type(path).__name__}; give a file's path: checkpoint='run.npz'.")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or os.path.isdir(path):
        raise ConfigurationError(
            f"checkpoint {os.fspath(path)!r} cannot be written: give the path of a file in a folder that exists."
        )
    return path


class Checkpoint:
    """A checkpoint file.

    - **path** - where it is.
    - **resumed** - whether it holds a run.
    - **key**, **run_id** - those of the run that it holds, or will hold.

    Resuming is a replay: a chunk that was cut off runs again under the keys it had, on the rows it had, and is one
    access. So the same program, versions, devices and rows are needed; anything else raises CheckpointError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._temporary = self._path + ".tmp"
        self._header: Document = {}
        self._arrays: dict[str, np.ndarray] = {}
        content = messages.bytes_from_first("checkpoint", self._read)
        self.resumed, self.run_id = content is not None, ""
        self.key: Tree = None
        if content is not None:
            try:
                with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                    self._arrays = dict(arrays)
                self._header = json.loads(str(self._arrays.pop("header")))
                if self._header["format"] != _FORMAT:
                    raise ValueError
                self.key, self.run_id = _key(self._arrays["key"], self._header["generator"]), self._header["run_id"]
                _ = self.leaves, [self._header[name] for name in ("digest", "leg", "done")]
            except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile):
                raise self._unreadable() from None
        self._digest = ""

    def hold(self, key: jax.Array, run_id: str, digest: str, arguments: Tree) -> None:
        """Hold this run from now on. Raises CheckpointError if the file holds another.

        - **key**, **run_id** - key and name of the run.
        - **arguments** - arrays and settings that must be the same in a resumed run."""
        self.key, self.run_id = key, run_id
        secret = np.asarray(jax.random.key_data(key)).tobytes()
        tag = hmac.new(secret, digest.encode(), hashlib.sha256)
        for leaf in jax.tree.leaves(arguments):
            array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
            tag.update(f"{array.dtype}{array.shape}".encode())
            tag.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer of its own
        self._digest = tag.hexdigest()
        if self.resumed and not hmac.compare_digest(self._header["digest"], self._digest):
            raise CheckpointError(
                f"the checkpoint {self._path} is of another run: model, settings, arguments, versions or devices differ. "
                "Run what it is of, or delete it to start anew; what it has run stays charged."
            )

    @property
    def leaves(self) -> list[np.ndarray]:
        """The arrays that the file holds, in order; none of a new run."""
        return [self._arrays[f"a{number}"] for number in range(self._header.get("count", 0))]

    def begun(self, recorded: Tree, groups: Sequence[object], finished: list[tuple[Tree, Tree]]) -> Progress:
        """Where to go on.

        - **recorded** - shapes of the records of a chunk.
        - **groups** - first states of each group of chains.
        - **finished** - list that the states and records of groups that are over are appended to."""
        if not self.resumed:
            return Progress(0, 0, groups[0], [])
        leaves = iter(self.leaves)
        take = lambda tree: jax.tree.map(lambda leaf: _as(leaf, next(leaves)), tree)  # noqa: E731
        group, done = self._header["leg"], self._header["done"]
        finished.extend((take(state), take(recorded)) for state in groups[:group])
        if group == len(groups):
            return Progress(group, 0, groups[-1], [])
        return Progress(group, done, take(groups[group]), [take(recorded)] if done else [])

    def save(self, progress: Progress, finished: Sequence[tuple[Tree, Tree]]) -> None:
        """Write all of it, atomically: a reader sees this or what was there before.

        - **finished** - states and records of the groups of chains that are over."""
        axis = 0 if np.ndim(progress.state.i) == 0 else 1
        recorded = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *progress.parts)
        self.write(jax.tree.leaves([*finished, progress.state, recorded]), progress.group, progress.done)

    def write(self, leaves: Sequence[Tree], group: int = 0, done: int = 0) -> None:
        """Write arrays, atomically; process 0 alone does.

        - **leaves** - the arrays, in order: `leaves` of a resumed run."""
        if not messages.leads():
            return
        header = {
            "format": _FORMAT, "digest": self._digest, "run_id": self.run_id, "leg": group, "done": done,
            "count": len(leaves), "generator": str(jax.random.key_impl(self.key)),
        }  # fmt: skip
        arrays = {"header": np.asarray(json.dumps(header)), "key": _plain(self.key)}
        arrays |= {f"a{number}": _plain(leaf) for number, leaf in enumerate(leaves)}
        try:
            replace_file(self._path, self._temporary, lambda file: np.savez(file, **arrays), 0o600)  # type: ignore[arg-type]
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self._path} cannot be written ({error.strerror or type(error).__name__}), so the run stopped; "
                "what it charged stays. Make room and call run again: it goes on from the checkpoint before. Without one give "
                "a new key."
            ) from None

    def remove(self) -> None:
        """Forget the run, which is complete: a second replay on other rows would cancel the noise."""
        if messages.leads():
            try:
                self._remove(self._path)
                self._remove(self._temporary)
            except OSError as error:  # the results are there
                warn(
                    f"the checkpoint {self._path} cannot be removed ({error.strerror}): delete it, it holds the run's key.",
                    charged=True,
                )

    @staticmethod
    def _remove(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def _read(self) -> bytes | None:
        self._remove(self._temporary)
        try:
            with open(self._path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError:
            raise self._unreadable() from None

    def _unreadable(self) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is no checkpoint that this version can read: give another path, or delete it to start anew."
        )


def _plain(leaf: jax.Array) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        leaf = leaf.addressable_data(0)  # all devices hold the same
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _key(data: np.ndarray, generator: str) -> jax.Array:
    return chacha.wrap(data) if data.shape[-1] == 8 else jax.random.wrap_key_data(jnp.asarray(data), impl=generator)


def _as(template: Tree, value: np.ndarray) -> Tree:
    """A saved array as a leaf: keys become keys again, and numbers of types that NumPy's files do not know get their type."""
    return (
        _key(value, str(jax.random.key_impl(template))) if is_key(template) else jnp.asarray(value.view(template.dtype))
    )
