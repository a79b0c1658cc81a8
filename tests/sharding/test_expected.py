"""Collectives that a layout's rules do not explain."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import Collective, sharding

MB = 10**6
MODEL, DATA = (0, 1, 2, 3), (0, 4)


def layout(**choices):
    mesh = rr.target("h100:8").mesh({"data": 2, "model": 4})
    return sharding.Layout(mesh, sharding.megatron(**choices))


def one(kind, group, size=2 * MB, argument=""):
    found = Collective(kind, "backward", "mlp", size, group=group, argument=argument)
    return (found,)


SEQUENCE = {"sequence": True}


@pytest.mark.parametrize(
    ("found", "choices", "why"),
    [
        (one("all-to-all", MODEL), {}, "exchange nothing along model"),
        (one("all-to-all", DATA), {}, "exchange nothing along data"),
        (one("all-to-all", DATA), {"expert": "data"}, None),
        (one("all-to-all", (0, 1, 4, 5)), {"expert": "data"}, "along data and model"),
        (one("all-reduce", MODEL), {}, None),
        (one("all-reduce", MODEL), SEQUENCE, "1.91 MiB are reduced along model"),
        (one("all-reduce", MODEL, MB), SEQUENCE, None),
        (one("all-reduce", DATA), SEQUENCE, None),
        (one("all-gather", MODEL), SEQUENCE, None),
        (one("all-gather", MODEL, argument="w['up']"), SEQUENCE, "w['up'] is gathered"),
        (one("all-gather", DATA, argument="w"), {}, "w is gathered along data"),
        (
            one("all-gather", DATA, argument="w"),
            {"fsdp": "data", "data": ()},
            None,
        ),
        (one("reduce-scatter", MODEL), SEQUENCE, None),
        (one("collective-permute", MODEL), {}, None),
    ],
)
def test_what_rules_do_not_explain_is_found(found, choices, why):
    told = [reason for _, reason in sharding.unexpected(found, layout(**choices))]
    assert bool(told) == (why is not None)
    assert why is None or why in told[0]


def problem(hidden_names):
    """An MLP whose hidden values are laid out by these names."""
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 1, "model": 8})
    rules = sharding.megatron(sequence=True)
    place = sharding.Layout(mesh, rules)

    def loss(w, x):
        whole = place.gather(x)
        h = place(jnp.tanh(whole @ w["up"]), *hidden_names)
        return (place.scatter(h @ w["down"]) ** 2).mean()

    def like(names, *shape, is_weight=True):
        spec = rules.spec(names, shape, dict(mesh.shape), is_weight=is_weight)
        where = jax.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)

    w = {
        "up": like(("embed", "mlp"), 256, 1024),
        "down": like(("mlp", "embed"), 1024, 256),
    }
    x = like(("batch", "norm_length", "embed"), 2, 1024, 256, is_weight=False)
    return rr.Problem(loss, (w, x), layout=place), target


@pytest.mark.parametrize(
    ("hidden_names", "is_expected"),
    [
        (("batch", "length", "mlp"), True),
        (("batch", "norm_length", None), False),  # a name on the wrong dimension
    ],
)
def test_reports_name_them_with_their_line(hidden_names, is_expected):
    asked, target = problem(hidden_names)
    found = rr.measure(asked, target=target)
    told = [note for note in found.notes if note.startswith("unexpected ")]
    assert bool(told) != is_expected
    assert all("test_expected.py:" in note for note in told)
    kinds = {one.kind for one in found.collectives}
    assert {"all-gather", "reduce-scatter"} <= kinds or not is_expected
    assert "collectives" in rr.render(found)
    assert rr.Measurement.from_json(found.to_json()) == found
