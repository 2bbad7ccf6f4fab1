import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpppl.jaxprs import Dependence, abstract, constants, depends_on, equations, programs, used_inputs

X = abstract((3,), np.float32)


def looped(x, y):
    """Depends on x through a scan and on y through neither the loop nor its unused output."""

    def step(carry, _):
        return (carry[0] * 2.0 + carry[1], carry[1]), carry[0] + y

    (total, _), _unused = lax.scan(step, (jnp.zeros(3), x), None, length=4)
    return lax.cond(total[0] > 0, lambda t: jnp.sin(t), lambda t: t, total)


def test_equations_are_those_of_all_programs_inside():
    program = jax.make_jaxpr(looped)(X, X)
    names = [equation.primitive.name for equation in equations(program)]
    assert {"scan", "cond", "sin", "mul", "add"} <= set(names) and names.count("sin") == 1
    branches = next(list(programs(e)) for e in equations(program) if e.primitive.name == "cond")
    assert len(branches) == 2


def test_constants_are_those_of_all_programs_inside():
    table = np.arange(5.0, dtype=np.float32)

    def function(x):
        return lax.scan(lambda c, _: (c + jnp.asarray(table)[0], None), x, None, length=2)[0]

    found = [np.asarray(value) for value in constants(jax.make_jaxpr(function)(X))]
    assert any(value.shape == (5,) and np.all(value == table) for value in found)


def test_dependence_is_followed_through_loops_and_branches():
    assert depends_on(looped, X, X) == (True, False)
    assert depends_on(lambda tree: tree["a"] + 1.0, {"a": X, "b": X}) == ({"a": True, "b": False},)
    program = jax.make_jaxpr(lambda x, y: (x, y))(X, X)
    assert used_inputs(program) == [True, True] and used_inputs(program, [False, True]) == [False, True]


def test_each_output_has_its_own_inputs_and_text():
    def function(scale):
        def run(z, rows):
            return {"prior": {"w": z["w"] ** 2, "s": scale * z["s"]}, "row": {"y": rows["y"] * z["w"]}}

        return Dependence(run, latent={"w": X, "s": X}, rows={"y": X})

    one, two = function(2.0), function(3.0)
    assert one.names("prior") == ["s", "w"] and one.shape("row", "y") == X
    assert one.inputs("prior", "w") == [("latent", "w")]
    assert sorted(one.inputs("row", "y")) == [("latent", "w"), ("rows", "y")]
    assert one.text("prior", "w") == two.text("prior", "w") and one.text("prior", "s") != two.text("prior", "s")


def test_text_tells_constant_arrays_apart():
    def text(table):
        return Dependence(lambda z: {"out": {"w": z["w"] + jnp.asarray(table)}}, latent={"w": X}).text("out", "w")

    assert text(np.arange(3.0)) == text(np.arange(3.0)) != text(np.ones(3))
