"""Rows that are read from disk inside an access: the same bits as in memory, each row once, and errors that are clear."""

import os
import re
import threading
import traceback
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from patches import same_key, smaller_blocks
from small_models import latent, seen

import dpppl
import dpppl.contrib.audit
from dpppl import ConfigurationError, DataReadError
from dpppl.access import ghost_sum
from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_statistic, noisy_sum
from dpppl.access.drawn import Blocks
from dpppl.access.exact_sum import over_blocks, over_chunks
from dpppl.access.mechanism import ROW_NUMBER, Mechanism
from dpppl.data import disk
from dpppl.data.rows import Rows
from dpppl.data.sources import Items, Source
from dpppl.randomness import keys
from dpppl.subsampling import FullBatch, Partition, Poisson, WithoutReplacement

N, D = 1_003, 3
ITEM = [("x", "float32", (D,)), ("y", "float32")]
FULL, SPARSE, DENSE, PARTITION = FullBatch(), Poisson(0.05), Poisson(0.6), Partition(3)


def array_of(seed=0, num_rows=N):
    rows = np.random.default_rng(seed).standard_normal((num_rows, D + 1)).astype(np.float32)
    rows[:, D] = rows[:, D] > 0
    return rows


def in_file(folder, array):
    path = os.path.join(folder, f"rows{len(os.listdir(folder))}.npy")
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def parts(array):
    return {"x": array[:, :D], "y": array[:, D]}


def reader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("dpppl-reader")]


# Sums


def of_row(z, row, _):
    hidden = jnp.tanh(row["x"] @ z["a"]) @ z["b"]
    return -jnp.sum((hidden - row["y"]) ** 2) * (1.0 + row[ROW_NUMBER] / N)


LATENTS = {"a": np.ones((D, 16), np.float32), "b": np.full((16, 16), 0.1, np.float32)}


def access(rows, subsampling, strategy="auto"):
    """An access of two chains."""
    mechanism = Mechanism(clipping=Flat(2.0), subsampling=subsampling, strategy=strategy)

    def one(key, rows):
        settings = dict(key=key, noise_multiplier=1e-3, step=3, number=ROW_NUMBER)
        return noisy_sum(mechanism, of_row, LATENTS, rows, None, **settings).total

    return jax.device_get(jax.jit(jax.vmap(one, (0, None)))(jax.random.split(jax.random.key(0), 2), rows))


def check_bits(subsampling, strategy, tmp_path, monkeypatch):
    """In several blocks of several chunks, whose sizes do not depend on it."""
    smaller_blocks(monkeypatch, 100)
    monkeypatch.setattr("dpppl.access.ghost_sum._MOST_ROWS", 32)
    array = array_of()
    in_memory = access(jax.tree.map(jnp.asarray, parts(array)), subsampling, strategy)
    rows = disk.on_disk(parts(in_file(tmp_path, array)), None)
    with disk.reading(rows.placement):
        found = access(rows, subsampling, strategy)
    jax.tree.map(np.testing.assert_array_equal, in_memory, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subsampling", "strategy"),
    [
        (FULL, "microbatch"),
        (FULL, "ghost"),
        (DENSE, "microbatch"),
        (SPARSE, "ghost"),
        (PARTITION, "microbatch"),
        (SPARSE, "microbatch"),
        (DENSE, "ghost"),
    ],
)
def test_sums_have_the_bits_of_those_in_memory(subsampling, strategy, tmp_path, monkeypatch):
    check_bits(subsampling, strategy, tmp_path, monkeypatch)
    assert not reader_threads() and not disk._open


def test_the_sums_by_factors_are_by_factors():
    row = {"x": np.ones(D, np.float32), "y": np.float32(1.0), ROW_NUMBER: np.int32(0)}
    assert any(
        form.kind == "outer" for form in ghost_sum.factored(of_row, LATENTS, row, None, always=True).forms.of_latents
    )


def test_each_row_of_blocks_counts_once():
    """Whatever the sizes of blocks: in the chunks of rows in memory, the rows that count once, the others never."""
    for length, chunk, at_once in ((103, 10, 25), (57, 10, 10), (9, 10, 20)):
        for counted in (length // 2, None):
            known = None if counted is None else jnp.arange(length) < counted
            mask = jnp.arange(length) % 3 != 0 if known is None else known

            def fetch(start, size, known=known):
                places = start + jnp.arange(size, dtype=jnp.int32)
                return places, (places % 3 != 0) if known is None else jax.lax.dynamic_slice_in_dim(known, start, size)

            def chunk_sum(places, mask, length=length):
                """How often each place counted, and in chunks that begin where."""
                nothing = jnp.zeros(3 * length + 100, jnp.int64)
                begins = nothing.at[places[0]].add(jnp.sum(mask.astype(jnp.int64)))
                return nothing.at[places].add(mask.astype(jnp.int64)), begins

            blocks = Blocks(length, at_once, jnp.zeros(1, jnp.int32), fetch, known, None if known is None else length)
            places = jnp.arange(length, dtype=jnp.int32)
            with jax.enable_x64(True):
                found = jax.jit(lambda: over_blocks(chunk_sum, blocks, chunk))()  # noqa: B023
                wanted = jax.jit(lambda: over_chunks(chunk_sum, places, mask, chunk, known is not None))()  # noqa: B023
            np.testing.assert_array_equal(found[0][:length], mask)
            jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.slow
def test_numbers_have_the_types_that_they_have_in_memory(tmp_path):
    """Numbers of 64 bits become those of 32 that JAX makes of them."""
    rows = np.random.default_rng(0).standard_normal((40, 2)) * 1e3
    found = disk.on_disk({"x": in_file(tmp_path, rows), "n": in_file(tmp_path, rows.astype(np.int64))}, None)
    of_row = lambda z, row, _: {"x": row["x"], "n": 1e-9 * row["n"]}  # noqa: E731
    mechanism = Mechanism(clipping=Flat(1e6), subsampling=FULL)
    settings = dict(key=jax.random.key(0), noise_multiplier=1e-30)
    total = noisy_statistic(mechanism, of_row, 0.0, found, None, **settings).total
    there = {"x": jnp.asarray(rows), "n": jnp.asarray(rows.astype(np.int64))}
    jax.tree.map(
        np.testing.assert_array_equal, total, noisy_statistic(mechanism, of_row, 0.0, there, None, **settings).total
    )


class Long:
    """A data set of very many rows, none of which is ever made."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        return np.zeros(100, np.float32)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("subsampling", [FULL, DENSE, Poisson(1e-6)])
def test_nothing_is_as_long_as_the_data(subsampling):
    mechanism = Mechanism(clipping=Flat(1.0), subsampling=subsampling)
    rows = disk.on_disk({"x": dpppl.from_disk(Long(disk.MOST_ROWS), dtype=("float32", (100,)))}, None)

    def run(z, rows, key):
        return noisy_sum(mechanism, lambda z, row, _: z @ row["x"], z, rows, None, key=key, noise_multiplier=1.0).total

    compiled = jax.jit(run).lower(jnp.zeros(100), rows, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10**8


def test_more_rows_than_numbers_of_32_bits_are_refused():
    with pytest.raises(ConfigurationError, match="2,146,435,073 rows are more than"):
        disk.on_disk({"x": dpppl.from_disk(Long(disk.MOST_ROWS + 1), dtype=("float32", (100,)))}, None)


# Whole runs


def model(x, y):
    seen(y, dist.Bernoulli(logits=x @ latent("w", D)))


def chains(array, kernel=None, **settings):
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, subsampling=Poisson(0.1)) if kernel is None else kernel
    mcmc = dpppl.MCMC(
        kernel, num_warmup=5, num_samples=20, target_epsilon=2.0, target_delta=1e-5, progress_bar=False,
        **({"print_cost": False} | settings),
    )  # fmt: skip
    with same_key() as key:
        mcmc.run(key, **(array if isinstance(array, dict) else parts(array)))
    return np.asarray(mcmc.get_samples()["w"]), mcmc


class Counted:
    """Rows in a data set that counts how often it is asked for one."""

    def __init__(self, array, fails_after=None):
        self.array, self.read, self.fails_after = array, 0, fails_after

    def __len__(self):
        return len(self.array)

    def __getitem__(self, number):
        self.read += 1
        if self.fails_after is not None and self.read > self.fails_after:
            raise ValueError("the row with the salary 123456 is damaged")
        return {"x": self.array[number, :D], "y": self.array[number, D]}

    def sources(self):
        source = dpppl.from_disk(self, dtype=ITEM)
        return {"x": source["x"], "y": source["y"]}


@pytest.fixture
def asked(altered):
    """The blocks that programs ask for, two of them to a pass over N rows."""
    found = []
    block = disk.TableReader.block

    def counted(self, start, size):
        found.append((start, size))
        return block(self, start, size)

    smaller_blocks(altered, 608)
    altered.setattr(disk.TableReader, "block", counted)
    return found


@pytest.mark.slow
def test_chains_and_what_they_say_they_read(asked, capsys):
    """A histogram of norms, and steps of two chains, which share what is read."""
    kernel = lambda: dpppl.DPSGHMC(model)  # noqa: E731
    rows, counted = array_of(), Counted(array_of())
    in_memory, _ = chains(rows, kernel(), num_chains=2, chain_method="vectorized")
    found, mcmc = chains(counted.sources(), kernel(), num_chains=2, chain_method="vectorized", print_cost=True)
    np.testing.assert_array_equal(in_memory, found)
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("It will read ")]) == 1
    assert "It will read 26 full passes of 1,003 rows, 417 kB in all:" in said[1]
    assert len(asked) == 1 + 26 * 2  # one for its time
    assert set(asked) == {(0, 608), (N - 608, 608)}
    assert "rows are read from disk" in str(mcmc.privacy_report())


@pytest.mark.slow
def test_batches_and_what_they_say_they_read(tmp_path, capsys):
    rows = array_of()
    in_memory, _ = chains(rows)
    found, _ = chains(in_file(tmp_path, rows), print_cost=True)
    np.testing.assert_array_equal(in_memory, found)
    assert "It will read 25 batches of about 100 rows of 1,003 rows, 40.1 kB in all:" in capsys.readouterr().out


@pytest.mark.slow
def test_parameters_and_queries(tmp_path):
    found = []
    for rows in (array_of(), in_file(tmp_path, array_of())):
        svi = dpppl.SVI(
            model, AutoNormal(model), subsampling=PARTITION, target_epsilon=2.0, target_delta=1e-5, reserve=0.2,
            num_data=N, print_cost=False,
        )  # fmt: skip
        with same_key() as key:
            params = svi.run(key, 20, **parts(rows), progress_bar=False).params
        with same_key() as key:
            right = lambda samples, x, y: jnp.mean((samples["w"] @ x > 0) == (y > 0))  # noqa: E731
            found.append((params, svi.estimate_accuracy(key, params, right, **parts(rows))))
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.slow
def test_releases_posteriors_and_what_they_say_they_read(asked, capsys):
    found, counted = [], Counted(array_of())
    for rows in (parts(array_of()), counted.sources()):
        private = dpppl.NoiseAware(model, target_epsilon=2.0, target_delta=1e-5, num_samples=50, progress_bar=False)
        with same_key() as key:
            private.run(key, **rows)
        found.append((private.releases.values, private.get_samples(allow_unconverged=True)["w"]))
    jax.tree.map(np.testing.assert_array_equal, *found)
    [passes] = re.findall(r"It will read (\d+) full passes", capsys.readouterr().out)
    assert len(asked) == 1 + int(passes) * 2


@pytest.mark.slow
def test_scores_and_arrays_in_memory_beside_rows_on_disk(asked, tmp_path):
    found = []
    rows = array_of()
    for x in (rows[:, :D], in_file(tmp_path, rows)[:, :D]):
        with same_key() as key:
            square = lambda x, y: (x[0] - y) ** 2  # noqa: E731
            found.append(dpppl.private_score(key, square, x, rows[:, D], bounds=(0.0, 2.0), noise_multiplier=2.0).mean)
    assert found[0] == found[1] and len(asked) == 2  # one pass


@pytest.mark.slow
def test_single_steps_of_guides_keep_their_program(tmp_path):
    svi = dpppl.SVI(model, AutoNormal(model), clipping_norm=1.0, noise_multiplier=2.0)
    state, rows = svi.init(keys.secret_key(), **parts(array_of())), in_file(tmp_path, array_of())
    for _ in range(2):
        state, _ = svi.update(state, **parts(rows))
    assert len(svi._programs) == 1 and int(state.i) == 2


@pytest.mark.slow
def test_a_program_reads_the_rows_that_it_was_made_for(tmp_path):
    """Programs of equal shapes read different files."""
    for seed in (0, 1):
        np.testing.assert_array_equal(chains(array_of(seed))[0], chains(in_file(tmp_path, array_of(seed)))[0])
    before = len(os.listdir("/proc/self/fd"))
    chains(in_file(tmp_path, array_of()))
    assert len(os.listdir("/proc/self/fd")) == before and not reader_threads() and not disk._open


# Failures


@pytest.mark.slow
def test_a_read_error_ends_a_run_and_what_was_charged_stays_charged(asked, caplog):
    """Its text, which may hold values, is not told."""
    counted = Counted(array_of(), fails_after=10 * 608)
    mcmc = dpppl.MCMC(
        dpppl.DPSGLD(model, clipping_norm=2.0), num_warmup=0, num_samples=40, target_epsilon=2.0, target_delta=1e-5,
        progress_bar=False, print_cost=False,
    )  # fmt: skip
    with pytest.raises(DataReadError, match="the data set's own code raised an error") as error, same_key() as key:
        mcmc.run(key, **counted.sources())
    assert mcmc.privacy_report().num_accesses == 6  # two steps a chunk; the third was begun
    with pytest.raises(ConfigurationError):
        mcmc.get_samples()
    assert "123456" not in caplog.text + str(error.value) and error.value.__cause__ is None
    assert not reader_threads() and not disk._open


def raising(error, cause=None, note=None):
    def act():
        if note is not None:
            error.add_note(note)
        raise error from cause

    return act


TOLD = "the row with the salary 123456"
SPEAKING = {
    "a file's name": lambda: raising(OSError(2, TOLD, "/rows/123456.png"))(),
    "no such file": lambda: open("/nowhere/123456.png"),
    "a cause": lambda: raising(OSError("no"), ValueError(TOLD))(),
    "a note": lambda: raising(RuntimeError("no"), note=TOLD)(),
    "an error of ours": lambda: raising(DataReadError(TOLD))(),
    "a key": lambda: {}[TOLD],
    "a kind of error": lambda: raising(type("Salary123456", (Exception,), {})())(),
    "a group": lambda: raising(ExceptionGroup(TOLD, [OSError(TOLD)]))(),
    "an exit": lambda: raising(SystemExit(TOLD))(),
    "an interrupt of a generator": lambda: raising(GeneratorExit(TOLD))(),
    "a warning": lambda: warnings.warn(TOLD, stacklevel=1),  # an error here
    "another length": lambda: [0] * 3,
}


class Speaking:
    """Items whose code says of one row, or where it has no number of its length, what it should not."""

    def __init__(self, say, at=7):
        self.say, self.at = say, at

    def __len__(self):
        if self.at is None:
            self.say()
        return 20

    def __getitems__(self, numbers):
        if self.at in numbers:
            return self.say()
        return [np.float32(0.5)] * len(numbers)

    def __getitem__(self, number):
        return self.__getitems__([number])[0]


def said(error):
    """All that an exception shows or holds."""
    seen, left = [], [error]
    while left:
        each = left.pop()
        seen += [repr(each), str(each), *getattr(each, "__notes__", ())]
        left += [e for e in (each.__cause__, each.__context__, *getattr(each, "exceptions", ())) if e is not None]
    return "".join([*seen, *traceback.format_exception(error)])


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("way", SPEAKING)
def test_what_a_data_sets_code_says_of_a_row_is_left_out(way, caplog, capfd):
    """Of every kind of exception: its words, kind, causes, contexts and notes, in errors, logs and printed text. All are one error."""
    source = dpppl.from_disk(Speaking(SPEAKING[way]), dtype="float32")
    with pytest.raises(DataReadError) as error:
        dpppl.private_score(dpppl.secret_key(), lambda x: x, source, bounds=(0.0, 1.0), noise_multiplier=3.0)
    assert str(error.value).startswith(f"rows could not be read: {disk.OWN_CODE}")
    assert "123456" not in said(error.value) + caplog.text + "".join(capfd.readouterr())
    if way not in ("an exit", "an interrupt of a generator", "another length"):
        with pytest.raises(DataReadError, match="for its length") as error:
            dpppl.from_disk(Speaking(SPEAKING[way], at=None), dtype="float32")
        assert "123456" not in said(error.value)


class Telling:
    """An array-like whose conversion says what a row holds."""

    shape, dtype, ndim = (20,), np.dtype(np.float32), 1

    def __len__(self):
        return 20

    def __array__(self, *_, **__):
        raise OSError(TOLD)


def test_what_an_array_likes_code_says_is_left_out():
    @jax.tree_util.register_pytree_node_class
    class Tree:
        def tree_flatten(self):
            raise ValueError(TOLD)

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    for given in (Telling(), Tree(), [Telling()], {"a": Tree()}, dpppl.Public(Tree())):
        with pytest.raises(ConfigurationError) as error:
            dpppl.private_score(
                dpppl.secret_key(), lambda x, y: x, np.ones(20), given, bounds=(0.0, 1.0), noise_multiplier=3.0
            )
        assert "123456" not in said(error.value)


@pytest.mark.slow
def test_files_that_change_are_noticed(tmp_path):
    rows = in_file(tmp_path, array_of())
    found = disk.on_disk(parts(rows), None)
    with disk.reading(found.placement):
        os.truncate(rows.filename, 5_000)
        for act in (
            lambda: disk.Block(found.placement, N)(0),
            lambda: disk.Draw(found.placement)(np.zeros(3, int)),
        ):
            with pytest.raises(DataReadError, match=r"rows0\.npy (ends before its last row|was changed)"):
                act()
        disk._open[found.placement].error = None
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0)
    mcmc = dpppl.MCMC(kernel, num_warmup=5, num_samples=5, target_epsilon=2.0, target_delta=1e-5, progress_bar=False)
    path = in_file(tmp_path, array_of()).filename
    source = dpppl.from_disk(path)
    np.save(path, array_of(1))
    with pytest.raises(DataReadError, match="was changed or replaced"):
        mcmc.run(keys.secret_key(), source[:, :D], source[:, D])
    assert mcmc.privacy_report().num_accesses == 0


@pytest.mark.slow
def test_a_checkpoint_knows_its_rows(tmp_path, dies_at_third_checkpoint):
    (tmp_path / "rows").mkdir()
    rows, other = in_file(tmp_path / "rows", array_of()), in_file(tmp_path / "rows", array_of(1))
    whole, _ = chains(rows)
    with dies_at_third_checkpoint():
        chains(rows, checkpoint=tmp_path / "run")
    with pytest.raises(dpppl.CheckpointError):
        chains(other, checkpoint=tmp_path / "run")
    copied = in_file(tmp_path / "rows", array_of())
    np.testing.assert_array_equal(whole, chains(copied, checkpoint=tmp_path / "run")[0])


# Refusals


class Unread(Items):
    """A table that is never to be opened."""

    why_not_drawn = "write it as Arrow once"

    def opened(self, sources):
        raise AssertionError


def unread():
    source = dpppl.from_disk(Counted(array_of()), dtype=ITEM)
    table = Unread(source.table.dataset, source.table.dtype)
    return {name: Source(table, name, source[name].shape, source[name].dtype) for name in ("x", "y")}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: chains(unread(), dpppl.DPSGLD(model, clipping_norm=2.0, subsampling=SPARSE)), "write it as Arrow once"),
        (lambda: chains(unread(), dpppl.DPSGLD(model, subsampling=SPARSE)), "write it as Arrow once"),
        (lambda: chains({**unread(), "person": [1] * N}, unit="person", max_rows_per_unit=2), "needs its rows in memory"),
        (lambda: dpppl.contrib.audit.audit(dpppl.DPSGLD(model, clipping_norm=2.0, noise_multiplier=1.0), num_steps=1, delta=1e-5, **unread()), "an audit needs its rows in memory"),
        (lambda: chains({"x": unread()["x"], "y": dpppl.Public(unread()["y"])}), "'y' is public and on disk"),
        (lambda: chains(unread(), mesh=jax.make_mesh((1,), ("rows",))), "leave mesh= out"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_read(run, message):
    with pytest.raises(ConfigurationError, match=message):
        run()


def test_the_door_takes_no_other_placement():
    @jax.tree_util.register_static
    class Mine(disk.OnDisk):
        pass

    rows = disk.on_disk(unread(), None)
    mine = Rows(rows.arrays, Mine(rows.placement.num_rows, rows.placement.sources))
    with pytest.raises(dpppl.PrivacyLeakError, match="an access with a Mine"):
        access(mine, FULL)


@pytest.mark.slow
def test_without_replacement_above_a_half(tmp_path, monkeypatch):
    smaller_blocks(monkeypatch, 600)
    with pytest.warns(UserWarning, match="far more privacy"):
        scheme = WithoutReplacement(800, N)
    in_memory = access(jax.tree.map(jnp.asarray, parts(array_of())), scheme)
    found = access(disk.on_disk(parts(in_file(tmp_path, array_of())), None), scheme)
    jax.tree.map(np.testing.assert_array_equal, in_memory, found)
