"""Wrong ledgers, accounts, plans, audits and proofs."""

import jax
import jax.numpy as jnp
import numpy as np
from refused_common import CHAIN, FOLDER, F, chain, kernel, mcmc, mean

import dpppl
from dpppl import PrivacyLedger
from dpppl import accounting as ac
from dpppl import information_flow as flow
from dpppl.contrib.audit import audit, replay

# fmt: off
EVENT = ac.GaussianEvent(noise_multipliers=((10.0, 100),))
NUMBER = [0]


def path():
    NUMBER[0] += 1
    return FOLDER / f"{NUMBER[0]}.ledger"


def ledger(epsilon=5.0, delta=1e-3, **settings):
    return PrivacyLedger(path(), epsilon, delta, **settings)


def reserved(what=lambda ledger: None):
    found = ledger()
    found.reserve("run", (EVENT,), "a run")
    what(found)
    return found


def not_a_ledger():
    file = FOLDER / "notes.txt"
    file.write_text("notes\n")
    return PrivacyLedger.open(file)


LEDGER = [
    ("an unknown relation", lambda: ledger(neighboring_relation="add_remove"), "add_remove|zero_out", lambda: ledger(neighboring_relation="zero_out")),
    ("a name that is a number", lambda: ledger(name=3), "name|text", lambda: ledger(name="3")),
    ("a unit that is a number", lambda: ledger(unit=1), "unit|text", lambda: ledger(unit="person")),
    ("epsilon as text", lambda: ledger("5"), "epsilon|number|str", lambda: ledger(float("5"))),
    ("full_batch_only as text", lambda: ledger(full_batch_only="yes"), "full_batch_only|True", lambda: ledger(full_batch_only=True)),
    ("a file that is no ledger", not_a_ledger, "notes.txt|not a ledger", lambda: PrivacyLedger.open(ledger().path)),
    ("a folder that is not there", lambda: PrivacyLedger("/nope/dir/a.ledger", 5.0, 1e-3), "/nope/dir|folder", lambda: ledger()),
    ("a number in place of events", lambda: ledger().reserve("run", 10.0, "a run"), "events|list|float", lambda: ledger().reserve("run", (EVENT,), "a run")),
    ("a list of numbers for events", lambda: ledger().admits([1.0, 2.0]), "GaussianEvent|float", lambda: ledger().admits([EVENT])),
    ("a report in place of events", lambda: ledger().admits(CHAIN().privacy_report()), "events|PrivacyReport|.events", lambda: ledger().admits(CHAIN().privacy_report().events)),
    ("a charge of half a step", lambda: reserved(lambda l: l.charge("run", (EVENT,), 0, 2.5)), "count|int(count)", lambda: reserved(lambda l: l.charge("run", (EVENT,), 0, 2))),
    ("a run of rows in a ledger of persons", lambda: chain(F, settings={"ledger": ledger(unit="person")}), "person|unit", lambda: chain(F, settings={"ledger": ledger(20.0, 1e-2)})),
    ("more than is left", lambda: chain(F, settings={"ledger": ledger(0.1, 1e-3)}), "0.1|budget", lambda: chain(F, settings={"ledger": ledger(20.0, 1e-2)})),
]

ACCOUNTS = [
    ("a sampler in place of events", lambda: ac.epsilon(CHAIN(), 1e-5), "events|MCMC", lambda: ac.epsilon(CHAIN().privacy_report().events, 1e-5)),
    ("a negative epsilon", lambda: ac.delta(EVENT, -1.0), "epsilon|negative", lambda: ac.delta(EVENT, 1.0)),
    ("epsilon as text", lambda: ac.delta(EVENT, "1"), "epsilon|number|str", lambda: ac.delta(EVENT, 1.0)),
    ("an unknown accountant", lambda: ac.epsilon(EVENT, 1e-5, "moments"), "'moments'|auto", lambda: ac.epsilon(EVENT, 1e-5, "rdp")),
    ("an order below 1", lambda: ac.rdp(EVENT, [0.5]), "orders|1", lambda: ac.rdp(EVENT, [2.0])),
    ("a group of 1.5", lambda: ac.group_epsilon(EVENT, 1e-5, 1.5), "group_size|int(group_size)", lambda: ac.group_epsilon(EVENT, 1e-5, int(1.5))),
    ("a false positive rate of 2", lambda: ac.trade_off(EVENT).false_negative_rate(2.0), "false_positive_rate|[0, 1]", lambda: ac.trade_off(EVENT).false_negative_rate(0.2)),
    ("a prior of 2", lambda: ac.trade_off(EVENT).bayes_risk(2.0), "prior|(0, 1)", lambda: ac.trade_off(EVENT).bayes_risk(0.2)),
    ("a baseline of -1", lambda: ac.trade_off(EVENT).inference_success(-1.0), "baseline|[0, 1]", lambda: ac.trade_off(EVENT).inference_success(0.5)),
    ("negative noise", lambda: ac.round_down(np.array([-1.0])), "noise multiplier|not negative", lambda: ac.round_down(np.array([1.0]))),
    ("a batch without N", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), batch_size=5), "num_data", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), batch_size=5, num_data=50, neighboring_relation="replace_one")),
    ("discrete by a word", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), discrete="yes"), "discrete|True", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), discrete=True)),
    ("a rate by words", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), sampling_rate="0.1"), "sampling_rate|number", lambda: ac.GaussianEvent(noise_multipliers=((1.0, 10),), sampling_rate=0.1)),
    ("an event in place of its maker", lambda: ac.calibrate_noise_multiplier(EVENT, 1.0, 1e-5), "make_event|function", lambda: ac.calibrate_noise_multiplier(lambda s: ac.GaussianEvent(noise_multipliers=((s, 100),)), 1.0, 1e-5)),
    ("a maker without an argument", lambda: ac.calibrate_noise_multiplier(lambda: EVENT, 1.0, 1e-5), "make_event|argument", lambda: ac.calibrate_noise_multiplier(lambda s: ac.GaussianEvent(noise_multipliers=((s, 100),)), 1.0, 1e-5)),
    ("a target that noise does not move", lambda: ac.calibrate_noise_multiplier(lambda s: ac.GaussianEvent(noise_multipliers=((1.0, 100),)), 0.01, 1e-5), "0.01|make_event must use its argument", lambda: ac.calibrate_noise_multiplier(lambda s: ac.GaussianEvent(noise_multipliers=((s, 100),)), 0.01, 1e-5)),
    ("an advantage of 2", lambda: ac.calibrate_advantage(lambda s: ac.GaussianEvent(noise_multipliers=((s, 1),)), 2.0), "target_advantage|(0, 1)", lambda: ac.calibrate_advantage(lambda s: ac.GaussianEvent(noise_multipliers=((s, 1),)), 0.2)),
    ("a divisor of 0", lambda: ac.to_dp_event(EVENT, divisor=0.0), "divisor|positive", lambda: ac.to_dp_event(EVENT, divisor=1.0)),
    ("a list of runs", lambda: ac.compare([EVENT], 1e-5), "runs|dict", lambda: ac.compare({"run": EVENT}, 1e-5)),
    ("a selection of numbers", lambda: ac.SelectionEvent(candidates=(1.0,), mean=2.0), "candidates|GaussianEvent", lambda: ac.SelectionEvent(candidates=((EVENT,),), mean=2.0)),
    ("a shape of words", lambda: ac.SelectionEvent(candidates=((EVENT,),), mean=2.0, shape="log"), "shape|number", lambda: ac.SelectionEvent(candidates=((EVENT,),), mean=2.0, shape=1.0)),
    ("a Privacy of text", lambda: dpppl.Privacy(epsilon="1", delta=1e-5), "epsilon|number|str", lambda: dpppl.Privacy(epsilon=1.0, delta=1e-5)),
    ("a Privacy by a long name", lambda: dpppl.Privacy(target_epsilon=1.0, target_delta=1e-5), "target_epsilon|epsilon", lambda: dpppl.Privacy(epsilon=1.0, delta=1e-5)),
]

BASE = {"num_data": 1000, "target_delta": 1e-5, "target_epsilon": 1.0, "simulates": False}


def plan(**settings):
    return ac.plan(**(BASE | settings))


PLANS = [
    ("one rate that is no list", lambda: plan(rates=0.1), "rates|[rates]", lambda: plan(rates=(0.1,))),
    ("a rate of 2", lambda: plan(rates=(2.0,)), "rates|from 1e-12 to 1", lambda: plan(rates=(0.2,))),
    ("a number of steps that is no list", lambda: plan(num_steps=400), "num_steps|[num_steps]", lambda: plan(num_steps=(400,))),
    ("no latents", lambda: plan(num_latents=0), "num_latents|positive", lambda: plan(num_latents=3)),
    ("a prior sd below 0", lambda: plan(prior_sd=-1.0), "prior_sd|positive", lambda: plan(prior_sd=1.0)),
    ("a row's curvature by a word", lambda: plan(row_curvature="logistic"), "row_curvature|number", lambda: plan(row_curvature=0.2)),
    ("clipping_norm auto", lambda: plan(clipping_norm="auto"), "clipping_norm|number", lambda: plan()),
    ("both targets", lambda: plan(target_advantage=0.1), "target_epsilon|target_advantage", lambda: plan()),
    ("a width at a word", lambda: plan().width_at("low"), "row_curvature|number", lambda: plan().width_at(0.1)),
    ("an option by its name", lambda: plan().width_at(0.1, "NoiseAware"), "option|plan.options", lambda: plan().width_at(0.1, plan().options[0])),
    ("a rate of rows per second of 0", lambda: plan(rows_per_second=0.0), "rows_per_second|positive", lambda: plan(rows_per_second=1e5)),
]

NOISY = {"noise_multiplier": 3.0}
TRIALS = {"num_steps": 1, "delta": 1e-5, "num_trials": 100}


def hunt(what=None, *args, **settings):
    return audit(what if what is not None else kernel(**NOISY), *(args or (F,)), **(TRIALS | settings))


def release(rng_key, y):
    return dpppl.private_score(rng_key, lambda y: y, y, bounds=(0.0, 1.0), noise_multiplier=5.0).mean


AUDITS = [
    ("canaries by a wrong word", lambda: hunt(canaries="mislabelled"), "canaries|gradient", lambda: hunt(canaries="gradient")),
    ("no trials", lambda: hunt(num_trials=0), "num_trials|at least 100", lambda: hunt()),
    ("confidence of 95", lambda: hunt(confidence=95), "confidence|(0.5, 1)", lambda: hunt(confidence=0.95)),
    ("a runner that is no function", lambda: replay(mcmc(), (F,), (F,)), "runner|function", lambda: replay(release, (F,), (np.r_[F[:-1], 9.0].astype(np.float32),))),
    ("rows that are no tuple", lambda: replay(release, F, F), "args|tuple", lambda: replay(release, (F,), (np.r_[F[:-1], 9.0].astype(np.float32),))),
]


def nothing(y):
    return jnp.zeros(3)


PROOFS = [
    ("an unknown index", lambda: flow.verify(nothing, F, private=3), "private|position|'y'", lambda: flow.verify(nothing, F, private=0)),
    ("private forgotten", lambda: flow.verify(nothing, F), "private", lambda: flow.verify(nothing, F, private="y")),
    ("no function", lambda: flow.verify(3, F, private=0), "function|int", lambda: flow.verify(nothing, F, private=0)),
    ("a program that shows rows", lambda: flow.verify(lambda y: y, F, private=0), "private rows are returned", lambda: flow.verify(nothing, F, private=0)),
    ("a program with the wrong arguments", lambda: flow.verify(nothing, private=0), "y", lambda: flow.verify(nothing, F, private=0)),
    ("a function in place of a program", lambda: flow.verify_jaxpr(nothing, [0]), "jax.make_jaxpr", lambda: flow.verify_jaxpr(jax.make_jaxpr(nothing)(F), [0])),
    ("an unknown input", lambda: flow.verify_jaxpr(jax.make_jaxpr(nothing)(F), [5]), "private_inputs|from 0 to 0", lambda: flow.verify_jaxpr(jax.make_jaxpr(nothing)(F), [0])),
    ("too few names", lambda: flow.verify_jaxpr(jax.make_jaxpr(nothing)(F), [0], input_names=["a", "b"]), "input_names|1 inputs", lambda: flow.verify_jaxpr(jax.make_jaxpr(nothing)(F), [0], input_names=["a"])),
    ("a program that branches on rows", lambda: flow.verify(lambda y: 1.0 if y[0] > 0 else 0.0, F, private=0), "jnp.where", lambda: flow.verify(nothing, F, private=0)),
]

CHECKS = [
    ("check of a number", lambda: dpppl.check(3, F), "model|function|int", lambda: dpppl.check(mean, F)),
    ("check of a sampler", lambda: dpppl.check(mcmc(), F), "MCMC|model", lambda: dpppl.check(mean, F)),
    ("check at epsilon -1", lambda: dpppl.check(mean, F, target_epsilon=-1.0), "target_epsilon|positive", lambda: dpppl.check(mean, F, target_epsilon=1.0)),
    ("an unknown generator", lambda: dpppl.secret_key("mersenne"), "generator|chacha20", lambda: dpppl.secret_key("chacha20")),
    ("a seed for the secret key", lambda: dpppl.secret_key(0), "generator|text", lambda: dpppl.secret_key()),
]

AREAS = {"ledger": LEDGER, "accounts": ACCOUNTS, "plans": PLANS, "audits": AUDITS, "proofs": PROOFS, "check": CHECKS}
