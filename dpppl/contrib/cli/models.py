"""The commands that load a user's model: `dpppl verify` and `dpppl audit`. The file is run, as `python FILE` would run it."""

import argparse
import ast
import re
import runpy
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.autoguide import AutoNormal

from dpppl.contrib import audit as auditing
from dpppl.errors import ConfigurationError
from dpppl.information_flow import verify
from dpppl.mcmc.three_kernels import DPSGLD
from dpppl.model.arguments import Public
from dpppl.noise_aware.runner import NoiseAware
from dpppl.randomness.keys import secret_key
from dpppl.subsampling import FullBatch, Poisson
from dpppl.svi.runner import SVI

Answer = tuple[dict[str, object], str]
_ARRAY = re.compile(r"(?P<dtype>[a-z]+\d+)\[(?P<shape>[\d, ]*)\]")


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both commands. `command(name, function, words)` makes the parser of one."""
    proves = "whether a NumPyro model can be run, and a proof that its rows leave through the mechanism only"
    attacks = "attack a method on a model with made-up rows or rows of one's own: a lower bound on epsilon"
    for name, function, words in (("verify", _verify, proves), ("audit", _audit, attacks)):
        added = command(name, function, words)
        added.add_argument("model", metavar="FILE:FUNCTION", help="a Python file, which is run, and the model in it")
        added.add_argument(
            "--argument", action="append", default=[], metavar="NAME=VALUE",
            help='an argument of the model: an array by its type, x="float32[100, 3]", or a Python literal',
        )  # fmt: skip
        added.add_argument("--public", action="append", default=[], metavar="NAME", help="a public argument")
        added.add_argument("--clipping-norm", type=float, default=1.0)
        added.add_argument("--rate", type=float, default=1.0, help="Poisson sampling rate; 1, every row, unless given")
        if name == "audit":
            added.add_argument("--noise-multiplier", type=float, required=True)
            added.add_argument("--steps", type=int, help="of a chain or SVI; noise-aware plans its own")
            added.add_argument("--delta", type=float, required=True)
            added.add_argument("--method", choices=("dpsgld", "svi", "noise-aware"), default="dpsgld")
            added.add_argument("--attack", choices=("white_box", "black_box", "one_run"), default="white_box")
            added.add_argument("--canaries", choices=("gradient", "row"), default="gradient")
            added.add_argument("--trials", type=int, default=20_000)
            added.add_argument("--data", type=Path, metavar="FILE", help="the model's arguments, an .npz file")
            added.add_argument("--html", type=Path, metavar="FILE", help="write a page that loads nothing")
            added.add_argument("--picture", type=Path, metavar="FILE", help="draw it, with matplotlib")


def refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise ConfigurationError for an option that was given, and that the command would ignore."""
    if given := [name for name in names if getattr(options, name) != options.parser.get_default(name)]:
        raise ConfigurationError(f"--{given[0].replace('_', '-')} {why}.")


def _kernel(options: argparse.Namespace, noise_multiplier: float) -> tuple[DPSGLD, dict[str, Any]]:
    """The kernel, and the model's arguments made up."""
    rng = np.random.default_rng(0)
    arguments = _loaded(getattr(options, "data", None)) | dict(_argument(item, rng) for item in options.argument)
    for name in options.public:
        if name not in arguments:
            raise ConfigurationError(f"--public {name} is no --argument.")
        arguments[name] = Public(arguments[name])
    kernel = DPSGLD(
        _model(options.model), clipping_norm=options.clipping_norm, noise_multiplier=noise_multiplier,
        subsampling=Poisson(options.rate) if options.rate != 1 else FullBatch(), measure_clipping=False,
    )  # fmt: skip
    return kernel, arguments


def _verify(options: argparse.Namespace) -> Answer:
    kernel, arguments = _kernel(options, 1.0)
    bound = kernel.bind((), arguments)
    split = bound.split
    rows, public = split.arrays((), arguments)
    state = bound.init(secret_key(), 0, None, public)
    found = verify(
        lambda state, rows, public: bound.step(state, rows=rows, public=public), state, rows, public,
        private="rows", secret_outputs=(".rng_key",), public_constants=True,
    )  # fmt: skip
    latents = {name: list(shape.shape) for name, shape in split.latents.items()}
    document = {
        "model": options.model, "data_plate": split.data_plate, "latents": latents, "private": [*rows], "public": [*public],
        "assumed_public": list(split.assumed_public), "accesses": found.doors, "proved": True,
    }  # fmt: skip
    lines = [
        f"{options.model}: rows are {', '.join(rows)}, in the plate '{split.data_plate}'; latents "
        + ", ".join(f"{name} {tuple(shape)}" for name, shape in latents.items()),
        "proved: in a step, rows enter nothing but the mechanism",
    ]
    if split.assumed_public:
        captured = ", ".join(split.assumed_public)
        lines.append(f"assumed public, captured by the model or arguments that are not private: {captured}")
    return document, "\n".join(lines)


def _audit(options: argparse.Namespace) -> Answer:
    if (options.steps is None) != (options.method == "noise-aware"):
        raise ConfigurationError("give --steps with dpsgld and svi, and not with noise-aware, which plans its own.")
    refuse(options, ["rate", "clipping_norm"] * (options.method == "noise-aware"), "is for dpsgld and svi")
    kernel, arguments = _kernel(options, options.noise_multiplier)
    audited: Any = kernel
    if options.method == "svi":
        settings: Any = dict(clipping_norm=options.clipping_norm, subsampling=kernel.mechanism.subsampling)
        audited = SVI(kernel.model, AutoNormal(kernel.model), noise_multiplier=options.noise_multiplier, **settings)
    if options.method == "noise-aware":
        audited = NoiseAware(kernel.model, noise_multiplier=options.noise_multiplier)
    found = auditing.audit(
        audited, num_steps=options.steps, delta=options.delta, attack=options.attack, canaries=options.canaries,
        num_trials=options.trials, **arguments,
    )  # fmt: skip
    if options.html is not None:
        from dpppl.contrib.pages import to_html

        options.html.write_text(to_html(found), encoding="utf-8")
    if options.picture is not None:
        from dpppl.contrib import plotting

        save(plotting.attack_picture(found), options.picture)
    document = {name: value for name, value in vars(found).items() if name != "events"}
    return document | {"consistent": found.consistent}, str(found)


def save(axes: Any, path: Path) -> None:
    """Write a picture. Raises ConfigurationError for a kind of file that matplotlib does not write."""
    known = sorted(axes.figure.canvas.get_supported_filetypes())
    if path.suffix[1:] not in known:
        raise ConfigurationError(f"--picture {path}: end the file's name in one of .{', .'.join(known)}.")
    axes.figure.savefig(path)


def _model(place: str) -> Any:
    file, _, name = place.rpartition(":")
    if not file or not Path(file).exists():
        raise ConfigurationError(f"{place!r} should be FILE:FUNCTION, a Python file that exists and a model in it.")
    try:
        found = runpy.run_path(file, run_name="dpppl_model")
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{file} fails when it is run: {type(error).__name__}: {error}; let python {file} run first."
        ) from None
    if not callable(found.get(name)):
        known = [f for f, value in found.items() if getattr(value, "__module__", "") == "dpppl_model"]
        raise ConfigurationError(f"{file} has no function {name}; its functions are {', '.join(known) or 'none'}.")
    return found[name]


def _loaded(path: Path | None) -> dict[str, Any]:
    """The arrays of an .npz file by name."""
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile):
        raise ConfigurationError(f"--data {path} is no .npz file; write one with np.savez(path, x=x, y=y).") from None


def _argument(item: str, rng: np.random.Generator) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    if array := _ARRAY.fullmatch(value.strip()):
        shape = tuple(int(size) for size in array["shape"].split(",") if size.strip())
        try:
            dtype = np.dtype(array["dtype"])
        except TypeError:
            raise ConfigurationError(f"--argument {name}: {array['dtype']} is no type of numbers.") from None
        made_up = rng.normal(size=shape) if np.issubdtype(dtype, np.floating) else rng.integers(0, 2, shape)
        return name, jax.device_put(jnp.asarray(made_up.astype(dtype)))
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise ConfigurationError(
            f"--argument {name} is neither an array's type, such as float32[100, 3], nor a Python literal."
        ) from None
