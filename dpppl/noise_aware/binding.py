"""From the arguments of a run to coordinates, responses and rows. Of private values ids alone are looked at."""

from dataclasses import dataclass

import jax

from dpppl.accounting.planning import MOST_LATENTS
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.information_flow.row_free import proved
from dpppl.likelihood.symmetry import symmetries
from dpppl.likelihood.unnamed import cure_of
from dpppl.model.responses import Responses
from dpppl.model.split import SplitModel
from dpppl.model.supports import codes, poisson_sites
from dpppl.model.units import responses_of, split_in_units
from dpppl.noise_aware.settings import NoiseAwareSettings
from dpppl.row_statistics.coordinates import Coordinates
from dpppl.runs.driver import TRACING
from dpppl.types import Function, Tree
from dpppl.validation import check_num_data


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundModel:
    """A model with its arguments.

    - **split**, **coordinates** - prior and log likelihood of one row, and the coordinates in which the likelihood is measured.
    - **responses** - those that the model could have given in a row's place.
    - **rows**, **public** - the private arrays, (N, ...), and the Public arrays, by label.
    - **symmetric** - the latents that may change places or signs, in words.
    - **unnamed** - a cure in words: which values that alone carry latents to rows the model should name as sites.
    - **constrain** - from latents of all samples and `public` to sites, as it was proved.
    - **codes** - which values the observed sites take; see `supports.codes`.
    - **poisson** - the observed sites whose law is Poisson's."""

    split: SplitModel
    coordinates: Coordinates
    responses: Responses
    rows: Tree
    public: Tree
    symmetric: tuple[str, ...]
    unnamed: str | None
    constrain: Function
    codes: tuple[str, ...]
    poisson: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the model, for before the run."""
        return (*self.split.notes, *([f"for less noise and bias {self.unnamed}."] if self.unnamed else []))


def bind(settings: NoiseAwareSettings, args: Tree, kwargs: Tree, key: jax.Array) -> BoundModel:
    """The model of `settings` with the arguments of a run, whose `key` decides which rows of a unit are kept.

    Of private values looks at ids alone, where rows of an id are a unit. Raises UnsupportedModelError and ConfigurationError."""
    args, kwargs = settings.grouped(settings.model, args, kwargs, key)
    weights = settings.weights
    model = settings.model if weights is None else weights.model(settings.model, kwargs)
    with TRACING:
        split = split_in_units(model, args, kwargs, data_plate=settings.data_plate)
        check_num_data(settings.num_data, split.num_rows)
        if weights is not None and (weights.name not in split.row or split.row[weights.name].shape):
            raise ConfigurationError(f"{weights.name} must be an array that holds one weight a row, (N,).")
        return bind_split(settings, split, *split.arrays(args, kwargs, settings.mesh))


def bind_split(settings: NoiseAwareSettings, split: SplitModel, rows: Tree, public: Tree) -> BoundModel:
    """`bind`, for a model that was split for its arguments, of which `rows` and `public` are the arrays."""
    with TRACING:
        coordinates = Coordinates.of(split, public, settings.coordinates)
        if not coordinates.dimension:
            raise UnsupportedModelError(
                "no latent enters the likelihood, so the rows inform none: use a latent in the distribution of an observed "
                "site, or draw from the prior, numpyro.infer.Predictive(model, num_samples=1000)."
            )
        if coordinates.dimension > MOST_LATENTS:
            raise ConfigurationError(
                f"{coordinates.dimension} coordinates enter the likelihood, and no posterior width is promised for more "
                f"than {MOST_LATENTS:,}; use dpppl.SVI."
            )
        responses = responses_of(split, settings.num_draws, public, may_share=settings.weights is None)
        if responses.scaled:
            raise UnsupportedModelError(
                f"the log probability of site '{responses.scaled[0]}' is scaled, and NoiseAware takes each response for one "
                "observation, as its width must; give weights of rows as a column, NoiseAware(..., weights='weight', "
                "max_weight=...), or use dpppl.DPSGLD or dpppl.SVI."
            )
        shapes = {n: jax.ShapeDtypeStruct((settings.num_samples, *s.shape), s.dtype) for n, s in split.latents.items()}
        constrain = proved(jax.vmap(split.constrain, (0, None)), shapes, public, num_rows=split.num_rows)
        proved(split.log_prior, split.latents, public, num_rows=split.num_rows)
        symmetric = symmetries(split, coordinates.draws, responses, public)
        unnamed = None if settings.coordinates else cure_of(split, coordinates.shapes)
        return BoundModel(
            split=split, coordinates=coordinates, responses=responses, rows=rows, public=public, symmetric=symmetric,
            constrain=constrain, unnamed=unnamed, codes=codes(split), poisson=poisson_sites(split),
        )  # fmt: skip
