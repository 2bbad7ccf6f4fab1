"""What a checkpoint's file keeps, without a run."""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpppl
from dpppl.errors import CheckpointError, ConfigurationError
from dpppl.runs.checkpoint import Checkpoint, Progress, checked_path

ARRAYS = {"x": np.arange(6.0), "y": np.arange(3).astype(jnp.bfloat16)}


class State(NamedTuple):
    """Of a group of chains; `i` has an axis if there are several."""

    i: object
    rng_key: object
    z: object


def group(number, chains=1):
    shape = () if chains == 1 else (chains,)
    keys = jax.random.split(jax.random.key(number), shape) if shape else dpppl.secret_key()
    return State(jnp.full(shape, number), keys, jnp.full((*shape, 2), number, jnp.bfloat16))


def held(path, key=None, run_id="name", digest="digest", arguments=ARRAYS):
    checkpoint = Checkpoint(path)
    checkpoint.hold(dpppl.secret_key() if key is None else key, run_id, digest, arguments)
    return checkpoint


def plain(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x).tolist() for x in jax.tree.leaves(tree)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


@pytest.mark.parametrize("chains", [1, 3])
def test_a_run_goes_on_where_it_was(path, chains):
    """In its second group of chains, with the records of both chunks of it; and then after the last."""
    groups, finished = [group(number, chains) for number in (1, 2)], []
    axes = () if chains == 1 else (chains,)

    def record(start, stop):
        return {"w": np.broadcast_to(np.arange(start, stop, dtype=np.float32), (*axes, stop - start))}

    new = held(path)
    assert (
        not new.resumed and new.begun(record(0, 4), groups, finished) == Progress(0, 0, groups[0], []) and not finished
    )
    done = (groups[0]._replace(i=groups[0].i + 9), record(0, 4))
    state = groups[1]._replace(z=groups[1].z + 3)
    new.save(Progress(1, 4, state, [record(4, 7), record(7, 8)]), [done])
    again = Checkpoint(path)
    assert again.resumed and again.run_id == "name" and plain(again.key) == plain(new.key)
    progress = again.begun(record(0, 4), groups, finished)
    assert (progress.group, progress.done) == (1, 4) and plain(progress.state) == plain(state)
    assert plain(progress.parts) == plain([record(4, 8)]) and plain(finished) == plain([done])
    assert progress.state.z.dtype == jnp.bfloat16 and jax.random.key_impl(
        progress.state.rng_key
    ) == jax.random.key_impl(state.rng_key)
    empty = record(0, 0)
    new.save(Progress(1, 0, state, [empty]), [done])
    finished.clear()
    progress = Checkpoint(path).begun(empty, groups, finished)
    assert (progress.group, progress.done, progress.parts) == (1, 0, []) and len(finished) == 1
    new.save(Progress(2, 0, state, [record(0, 4)]), [done, (state, record(4, 8))])
    finished.clear()
    progress = Checkpoint(path).begun(record(0, 4), groups, finished)
    assert (progress.group, progress.done, progress.parts) == (2, 0, []) and plain(finished[1]) == plain(
        (state, record(4, 8))
    )


OTHERS = {
    "another key": {"key": lambda: dpppl.secret_key()},
    "another program": {"digest": lambda: "other"},
    "a value": {"arguments": lambda: ARRAYS | {"x": ARRAYS["x"] + 1e-9}},
    "a type": {"arguments": lambda: ARRAYS | {"x": ARRAYS["x"].view(np.int64)}},
    "a shape": {"arguments": lambda: ARRAYS | {"x": ARRAYS["x"].reshape(2, 3)}},
    "a key among them": {"arguments": lambda: {**ARRAYS, "z": jax.random.key(3)}},
    "one less": {"arguments": lambda: {"x": ARRAYS["x"]}},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_run_is_refused(path, other):
    key = dpppl.secret_key()
    held(path, key).write([np.arange(2)])
    assert np.array_equal(held(path, key).leaves[0], np.arange(2)) and held(path, key, run_id="its name is no matter")
    kept = path.read_bytes()
    with pytest.raises(CheckpointError, match="of another run"):
        held(path, **({"key": key} | {name: make() for name, make in other.items()}))
    assert path.read_bytes() == kept


def test_keys_in_what_is_held_are_compared(path):
    key = dpppl.secret_key()
    held(path, key, arguments={"z": jax.random.key(3)}).write([])
    held(path, key, arguments={"z": jax.random.key(3)})
    with pytest.raises(CheckpointError):
        held(path, key, arguments={"z": jax.random.key(4)})


def test_the_file_is_replaced_as_a_whole_and_is_for_its_owner_alone(path, monkeypatch):
    checkpoint = held(path)
    checkpoint.write([np.arange(2)])
    kept, draft = path.read_bytes(), path.with_name(path.name + ".tmp")
    draft.write_text("of a run that was killed while it wrote")
    os.chmod(draft, 0o644)
    synced, fsync = [], os.fsync
    with monkeypatch.context() as patch:
        patch.setattr("dpppl.output.os.fsync", lambda number: (synced.append(number), fsync(number)))
        checkpoint.write([np.arange(3)])
    assert (
        path.stat().st_mode & 0o777 == 0o600 and len(synced) == 1 and not draft.exists() and path.read_bytes() != kept
    )
    kept = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dpppl.output.os.{name}", full)
            with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
                checkpoint.write([np.arange(4)])
        assert path.read_bytes() == kept and not draft.exists()
    draft.write_text("a draft")
    Checkpoint(path)
    assert not draft.exists()  # a draft holds keys, too
    draft.write_text("a draft")
    checkpoint.remove()
    assert not path.exists() and not draft.exists()
    checkpoint.remove()


def test_process_0_alone_writes_and_removes(path, monkeypatch):
    checkpoint = held(path)
    checkpoint.write([])
    kept = path.read_bytes()
    monkeypatch.setattr("dpppl.runs.checkpoint.messages.leads", lambda: False)
    checkpoint.write([np.arange(3)])
    checkpoint.remove()
    assert path.read_bytes() == kept


def test_files_that_cannot_be_checkpoints_are_refused(path):
    for content in ("no checkpoint", ""):
        path.write_text(content)
        with pytest.raises(CheckpointError, match="no checkpoint that this version can read"):
            Checkpoint(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint that this version can read"):
        Checkpoint(path)
    for wrong, words in ((7, "is a int"), (path, "cannot be written"), (path / "no" / "folder", "cannot be written")):
        with pytest.raises(ConfigurationError, match=words):
            checked_path(wrong)
    assert (
        checked_path(None) is None and checked_path("run.npz") == "run.npz" and checked_path(path / "a") == path / "a"
    )
