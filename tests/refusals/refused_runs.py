"""Wrong settings and orders of calls: NoiseAware, MCMC and its kernels, SVI and guides, units."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import HMC, NUTS
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from refused_common import (
    AWARE,
    CHAIN,
    COST,
    FITTED,
    FOLDER,
    QUIET,
    F,
    N,
    X,
    chain,
    fit,
    kernel,
    key,
    linear,
    mcmc,
    mean,
    noise_aware,
    normal,
    rows,
    svi,
)

import dpppl
from dpppl import DPSGHMC, DPSGLD, DPSGNHT, MCMC, NoiseAware
from dpppl.contrib.synthetic import Category, Schema, table_model
from dpppl.contrib.tuning import tune

# fmt: off
FREE = {"target_epsilon": None, "target_delta": None}
WEIGHT = np.linspace(1.0, 2.0, N).astype(np.float32)
IDS = np.arange(N) // 2
UNIT = {"unit": "person", "max_rows_per_unit": 2}


def wide(x, y):
    w = normal("w", 10_001)
    with rows(x):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def other_checkpoint():
    path = FOLDER / "run.checkpoint"
    path.write_text("age,wage\n")
    mcmc(checkpoint=path).run(key(), F)


NOISE_AWARE = [
    ("width by a word", lambda: noise_aware(F, settings={"width": "narrow"}), "width|sandwich", lambda: noise_aware(F, settings={"width": "sandwich"})),
    ("weights that are no argument", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}), "give weight=|one weight for each row", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=WEIGHT)),
    ("weights without a cap", lambda: noise_aware(F, settings={"weights": "weight"}, weight=WEIGHT), "max_weight", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=WEIGHT)),
    ("a cap without weights", lambda: noise_aware(F, settings={"max_weight": 2.0}), "max_weight|weights", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=WEIGHT)),
    ("a cap below 0", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": -2.0}, weight=WEIGHT), "max_weight|positive", lambda: noise_aware(F, settings={"weights": "weight", "max_weight": 2.0}, weight=WEIGHT)),
    ("too many latents", lambda: noise_aware(np.ones((N, 10_001), np.float32), F, model=wide), "10001|10,000|dpppl.SVI", lambda: fit(svi(wide), np.ones((N, 10_001), np.float32), F)),
    ("a second run", lambda: AWARE().run(key(), F), "run|new", lambda: noise_aware(F)),
    ("sample_again of another model's rows", lambda: AWARE().sample_again(key(), F[:9]), "y float32[40]|y float32[9]", lambda: AWARE().sample_again(key(), F)),
    ("an unknown latent, Bayes factor", lambda: AWARE().bayes_factor("nu"), "name of a latent's element|elements: mu", lambda: AWARE().bayes_factor("mu", allow_unconverged=True)),
    ("words as the value, Bayes factor", lambda: AWARE().bayes_factor("mu", "zero"), "value|number", lambda: AWARE().bayes_factor("mu", 0.0, allow_unconverged=True)),
    ("a number as the element, Bayes factor", lambda: AWARE().bayes_factor(0), "element|text", lambda: AWARE().bayes_factor("mu", allow_unconverged=True)),
    ("a summary at 90", lambda: AWARE().print_summary(prob=90), "prob|0.9|(0, 1)", lambda: AWARE().print_summary(prob=0.9)),
    ("a summary at a word", lambda: AWARE().print_summary(prob="all"), "prob|number", lambda: AWARE().print_summary(prob=0.9)),
    ("coordinates that are observed", lambda: noise_aware(F, settings={"coordinates": ["y"]}), "site 'y'|name the latents", lambda: noise_aware(F, settings={"coordinates": ["mu"]})),
    ("a ledger by an object", lambda: NoiseAware(mean, ledger={"epsilon": 1.0}, **COST), "ledger|PrivacyLedger", lambda: NoiseAware(mean, ledger=dpppl.PrivacyLedger(FOLDER / "n.ledger", 20.0, 1e-2), **COST)),
    ("the data in place of the model", lambda: NoiseAware(X, **COST, **QUIET).run(key(), F), "model|function|ndarray", lambda: NoiseAware(mean, **COST)),
    ("a checkpoint folder that is not there", lambda: NoiseAware(mean, checkpoint="/nope/dir/run", **COST).run(key(), F), "/nope/dir|folder", lambda: noise_aware(F, settings={"checkpoint": FOLDER / "aware"})),
]

KERNELS = [
    ("NUTS", lambda: MCMC(NUTS(mean), num_warmup=1, num_samples=1, **COST), "NUTS|dpppl.DPSGLD", lambda: MCMC(DPSGLD(mean), num_warmup=1, num_samples=1, **COST)),
    ("HMC", lambda: MCMC(HMC(mean), num_warmup=1, num_samples=1, **COST), "HMC|dpppl.DPSGLD", lambda: MCMC(DPSGHMC(mean), num_warmup=1, num_samples=1, **COST)),
    ("a kernel's class", lambda: MCMC(DPSGLD, num_warmup=1, num_samples=1, **COST), "DPSGLD|(model", lambda: MCMC(DPSGLD(mean), num_warmup=1, num_samples=1, **COST)),
    ("a learning rate", lambda: DPSGLD(mean, learning_rate=0.1), "learning_rate|step_size", lambda: DPSGLD(mean, clipping_norm=1.0, step_size=0.1)),
    ("a kernel of a kernel", lambda: chain(F, own=DPSGLD(DPSGLD(mean))), "DPSGLD|model", lambda: chain(F)),
    ("friction by a wrong word", lambda: DPSGHMC(mean, friction="critical"), "friction|(0, 1)", lambda: DPSGHMC(mean, friction=0.1)),
    ("diffusion by a word", lambda: DPSGNHT(mean, diffusion="auto"), "diffusion|number", lambda: DPSGNHT(mean, diffusion=0.1)),
    ("clipping by a wrong word", lambda: kernel(clipping="per_layer"), "clipping|flat", lambda: kernel(clipping="flat")),
    ("the class of a scheme", lambda: kernel(subsampling=dpppl.FullBatch), "FullBatch()|subsampling", lambda: kernel(subsampling=dpppl.FullBatch())),
    ("a batch larger than the data", lambda: dpppl.Poisson.of_batch(100, N), "batch_size <= num_data", lambda: dpppl.Poisson.of_batch(10, N)),
    ("a rate in percent", lambda: dpppl.Poisson(10), "rate|(0, 1]", lambda: dpppl.Poisson(0.1)),
    ("a batch of all rows", lambda: dpppl.WithoutReplacement(50, 40), "batch_size <= num_data", lambda: dpppl.WithoutReplacement(10, 40)),
    ("more batches than rows", lambda: chain(F, own=kernel(subsampling=dpppl.Partition(41))), "41|40", lambda: chain(F, own=kernel(subsampling=dpppl.Partition(4)))),
    ("half a batch", lambda: dpppl.Partition(4.5), "num_batches|integer", lambda: dpppl.Partition(4)),
    ("a scheme of another N", lambda: chain(F, own=kernel(subsampling=dpppl.WithoutReplacement(10, 100))), "100|40", lambda: chain(F, own=kernel(subsampling=dpppl.WithoutReplacement(10, 40)))),
    ("a power of words", lambda: dpppl.polynomial_decay(0.1, "half"), "power|number", lambda: dpppl.polynomial_decay(0.1, 0.5)),
    ("a first step of 0", lambda: dpppl.polynomial_decay(0.0), "initial_step_size|positive", lambda: dpppl.polynomial_decay(0.1)),
    ("a schedule's value", lambda: chain(F, own=kernel(step_size=lambda i: -0.1), settings=FREE | {"noise_multiplier": 5.0}), "step size|positive", lambda: chain(F, own=kernel(step_size=lambda i: 0.1), settings=FREE | {"noise_multiplier": 5.0})),
    ("a start at a wrong site", lambda: chain(F, own=kernel(init_strategy={"nu": 0.0})), "'nu'|'mu'", lambda: chain(F, own=kernel(init_strategy={"mu": 0.0}))),
    ("optax as the step size", lambda: kernel(step_size=optax.adam(0.1)), "step_size|number", lambda: kernel(step_size=0.1)),
]

CHAINS = [
    ("thinning more than there is", lambda: mcmc(thinning=9), "thinning|num_samples", lambda: mcmc(thinning=2)),
    ("a chain method", lambda: mcmc(chain_method="threads"), "draw chains|parallel", lambda: mcmc(chain_method="vectorized")),
    ("many keys", lambda: mcmc().run(jax.random.split(jax.random.key(0), 4), F), "key|one", lambda: chain(F)),
    ("an unknown field", lambda: mcmc().run(key(), F, extra_fields=("potential_energy",)), "potential_energy", lambda: mcmc().run(key(), F)),
    ("a start of another shape", lambda: mcmc().run(key(), F, init_params={"mu": np.zeros(3)}), "'mu'|()", lambda: mcmc().run(key(), F, init_params={"mu": np.zeros(())})),
    ("samples before a run", lambda: mcmc().get_samples(), "run", lambda: CHAIN().get_samples(allow_unconverged=True)),
    ("noise and target", lambda: mcmc(noise_multiplier=1.0), "noise_multiplier|target_epsilon", lambda: mcmc(noise_multiplier=1.0, **FREE)),
    ("all in reserve", lambda: mcmc(reserve=1.5), "reserve|[0, 1)", lambda: mcmc(reserve=0.5)),
    ("a checkpoint that is another file", other_checkpoint, "run.checkpoint|no checkpoint", lambda: mcmc(checkpoint=FOLDER / "new.checkpoint").run(key(), F)),
    ("weights before a run", lambda: mcmc().get_weights(), "run|get_weights", lambda: CHAIN().get_weights()),
]


def guide_of_rows(x, y=None):
    numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[0]), 1.0).to_event(1))


def guide_right(x, y=None):
    numpyro.sample("w", dist.Normal(numpyro.param("m", jnp.zeros(3)), 1.0).to_event(1))


VARIATIONAL = [
    ("a guide of another model", lambda: fit(svi(linear, AutoNormal(mean)), X, F), "AutoNormal(linear)", lambda: fit(svi(linear, AutoNormal(linear)), X, F)),
    ("a guide of each row", lambda: fit(svi(linear, guide_of_rows), X, F), "the model in shape (3,)|write dist.Normal", lambda: fit(svi(linear, guide_right), X, F)),
    ("steps forgotten", lambda: svi().run(key(), F), "num_steps", lambda: svi().run(key(), 2, F, progress_bar=False)),
    ("steps as a float", lambda: fit(num_steps=1e2), "num_steps|int(num_steps)", lambda: fit(num_steps=int(1e1))),
    ("an unknown start", lambda: fit(init_params={"loc": 0.0}), "'loc'|mu_auto_loc", lambda: fit(init_params={"mu_auto_loc": 0.0})),
    ("a start of another shape", lambda: fit(init_params={"mu_auto_loc": np.zeros(3)}), "mu_auto_loc|()", lambda: fit(init_params={"mu_auto_loc": 0.0})),
    ("a negative scale to start", lambda: fit(init_params={"mu_auto_scale": -1.0}), "mu_auto_scale|positive", lambda: fit(init_params={"mu_auto_scale": 0.5})),
    ("thinning of 0", lambda: fit(thinning=0), "thinning|positive", lambda: fit(thinning=1)),
    ("a tail of 2", lambda: FITTED().averaged_params(tail=2.0), "tail|(0, 1]", lambda: FITTED().averaged_params(tail=0.5, allow_unconverged=True)),
    ("a tail by a word", lambda: FITTED().averaged_params(tail="half"), "tail|number", lambda: FITTED().averaged_params(tail=0.5, allow_unconverged=True)),
    ("draws of -1", lambda: FITTED().sample_posterior(key(), -1), "num_samples|positive", lambda: FITTED().sample_posterior(key(), 5)),
    ("draws by a word", lambda: FITTED().sample_posterior(key(), "many"), "num_samples|whole number", lambda: FITTED().sample_posterior(key(), 5)),
    ("parameters of another guide", lambda: FITTED().sample_posterior(key(), 5, {"loc": 0.0}), "'loc'|mu_auto_loc", lambda: FITTED().sample_posterior(key(), 5, FITTED().params)),
    ("parameters of another shape", lambda: FITTED().sample_posterior(key(), 5, FITTED().params | {"mu_auto_loc": np.zeros(3)}), "mu_auto_loc|(3,)|()", lambda: FITTED().sample_posterior(key(), 5, FITTED().params)),
    ("an ELBO without a bound", lambda: svi(num_data=N).estimate_elbo(key(), FITTED().params, F), "bound", lambda: svi(num_data=N, noise_multiplier=5.0, **FREE).estimate_elbo(key(), FITTED().params, F, bound=3.0, noise_multiplier=5.0)),
    ("a bound below 0", lambda: svi(noise_multiplier=5.0, **FREE).estimate_elbo(key(), FITTED().params, F, bound=-1.0, noise_multiplier=5.0), "bound|positive", lambda: svi(noise_multiplier=5.0, **FREE).estimate_elbo(key(), FITTED().params, F, bound=1.0, noise_multiplier=5.0)),
    ("a result as parameters", lambda: svi(noise_multiplier=5.0, **FREE).estimate_elbo(key(), FITTED(), F, bound=1.0, noise_multiplier=5.0), "params|give its .params", lambda: svi(noise_multiplier=5.0, **FREE).estimate_elbo(key(), FITTED().params, F, bound=1.0, noise_multiplier=5.0)),
    ("an accuracy that is no number", lambda: svi(num_data=N, noise_multiplier=5.0, **FREE).estimate_accuracy(key(), FITTED().params, lambda s, y: jnp.ones(3), F, noise_multiplier=5.0), "correct|(3,)|one number", lambda: svi(num_data=N, noise_multiplier=5.0, **FREE).estimate_accuracy(key(), FITTED().params, lambda s, y: 1.0 * (s["mu"] > y).mean(), F, noise_multiplier=5.0)),
    ("an accuracy by a word", lambda: svi(num_data=N, noise_multiplier=5.0, **FREE).estimate_accuracy(key(), FITTED().params, "accuracy", F, noise_multiplier=5.0), "correct|function", lambda: svi(num_data=N, noise_multiplier=5.0, **FREE).estimate_accuracy(key(), FITTED().params, lambda s, y: 1.0 * (s["mu"] > y).mean(), F, noise_multiplier=5.0)),
    ("dropout of 2", lambda: dpppl.AutoDropout(linear, rate=2.0), "rate|(0, 1)", lambda: dpppl.AutoDropout(linear, rate=0.2)),
    ("dropout of an unknown site", lambda: fit(svi(linear, dpppl.AutoDropout(linear, rate=0.2, sites=["nope"])), X, F), "sites|'w'", lambda: fit(svi(linear, dpppl.AutoDropout(linear, rate=0.2, sites=["w"])), X, F)),
    ("dropout by a word", lambda: dpppl.AutoDropout(linear, rate=0.2, sites=3), "sites|list", lambda: dpppl.AutoDropout(linear, rate=0.2, sites=["w"])),
    ("an update before init", lambda: svi(noise_multiplier=5.0, **FREE).update(None, F), "call init", lambda: (lambda s: s.update(s.init(key(), F), F))(svi(noise_multiplier=5.0, **FREE))),
    ("a plan of words", lambda: svi().privacy_plan("all"), "num_steps|whole number", lambda: svi().privacy_plan(10)),
    ("the gradient by a word", lambda: svi(gradient="natural"), "gradient|aligned", lambda: svi(gradient="aligned")),
    ("a diagonal guide of a class", lambda: fit(svi(guide=AutoDiagonalNormal(F))), "guide|model", lambda: svi(guide=AutoDiagonalNormal(mean))),
]

PERSONS = [
    ("ids forgotten", lambda: chain(F, settings=UNIT), "person=", lambda: chain(F, settings=UNIT, person=IDS)),
    ("a unit without a number", lambda: chain(F, settings={"unit": "person"}, person=IDS), "max_rows_per_unit", lambda: chain(F, settings=UNIT, person=IDS)),
    ("rows from disk and ids", lambda: chain(dpppl.from_disk(FOLDER / "rows.npy"), settings=UNIT, person=IDS), "disk|unit", lambda: chain(F, settings=UNIT, person=IDS)),
    ("0 rows a person", lambda: chain(F, settings={"unit": "person", "max_rows_per_unit": 0}, person=IDS), "max_rows_per_unit|positive", lambda: chain(F, settings=UNIT, person=IDS)),
    ("a unit named as an argument of the model", lambda: chain(F, settings={"unit": "y", "max_rows_per_unit": 2}), "y=|another name|unit='y_id'", lambda: chain(F, settings=UNIT, person=IDS)),
]

BY_WORD = {
    "discretise": lambda x: kernel(discretise=x),
    "measure_clipping": lambda x: kernel(measure_clipping=x),
    "progress_bar": lambda x: mcmc(progress_bar=x),
    "print_cost": lambda x: mcmc(print_cost=x),
    "allow_unconverged": lambda x: CHAIN().get_samples(allow_unconverged=x),
    "group_by_chain": lambda x: CHAIN().get_samples(x, allow_unconverged=True),
    "group_by_chain, fields": lambda x: CHAIN().get_extra_fields(x),
    "exclude_deterministic": lambda x: CHAIN().print_summary(exclude_deterministic=x),
    "allow_unconverged, ArviZ": lambda x: CHAIN().to_arviz(allow_unconverged=x),
    "collect_warmup": lambda x: mcmc().warmup(key(), F, collect_warmup=x),
    "discretise, SVI": lambda x: svi(discretise=x),
    "measure_clipping, SVI": lambda x: svi(measure_clipping=x, num_data=N),
    "print_cost, SVI": lambda x: svi(print_cost=x),
    "progress_bar, SVI": lambda x: svi().run(key(), 2, F, progress_bar=x),
    "allow_unconverged, SVI": lambda x: FITTED().averaged_params(allow_unconverged=x),
    "progress_bar, NoiseAware": lambda x: NoiseAware(mean, progress_bar=x, **COST),
    "print_cost, NoiseAware": lambda x: NoiseAware(mean, print_cost=x, **COST),
    "allow_unconverged, NoiseAware": lambda x: AWARE().get_samples(allow_unconverged=x),
    "group_by_chain, NoiseAware": lambda x: AWARE().get_samples(x, allow_unconverged=True),
    "exclude_deterministic, NoiseAware": lambda x: AWARE().print_summary(exclude_deterministic=x),
    "allow_unconverged, Bayes factor": lambda x: AWARE().bayes_factor("mu", allow_unconverged=x),
    "measure_spread": lambda x: dpppl.private_score(key(), lambda y: y, F, bounds=(0.0, 1.0), noise_multiplier=9.0, measure_spread=x),
    "print_cost, tune": lambda x: tune(key(), [1.0], lambda c: mcmc(num_samples=2, noise_multiplier=50.0, **FREE), lambda s, y: 0.0 * y, F, bounds=(-1.0, 0.0), score_noise=9.0, print_cost=x),
    "simulates": lambda x: dpppl.accounting.plan(num_data=1000, target_epsilon=1.0, target_delta=1e-5, simulates=x),
    "interactions": lambda x: table_model(Schema((Category("sex", ("F", "M")),)), interactions=x),
}
SWITCHES = [
    (f"{name} by {word!r}", lambda call=call, word=word: call(word), f"{name.split(',')[0]}|True or False", lambda call=call: call(True))
    for (name, call), word in zip(BY_WORD.items(), ["yes", 1, None, "no", 0.0] * len(BY_WORD))
]

AREAS = {"switches": SWITCHES, "NoiseAware": NOISE_AWARE, "kernels": KERNELS, "MCMC": CHAINS, "SVI": VARIATIONAL, "persons": PERSONS}
