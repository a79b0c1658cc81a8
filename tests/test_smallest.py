"""Where nothing fits, what needs least is compiled, and then what holds more surely."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._smallest import try_smallest
from revremat.policies import Menu, Price

BYTES = {"written out": 3.0, "on the host": 4.0, "looked at": 4.5, "full": 5.0}
WAYS = {"unroll": "written out", "on_host": "on the host", "closer": "looked at"}


class Searched:
    """A search where nothing fits yet, and some take more than their prices say.

    Args:
      too_small: Whose prices are far too small.
      told: Bytes that second prices say of what has other first ones.
      room: Compiles that are left.
    """

    host_bytes, prices = 100.0, ()

    def __init__(self, too_small=(), told=(), budget=6, room=9):
        self.too_small, self.told = too_small, dict(told)
        self.budget, self.room = budget, room
        self.bytes, self.tried = dict(BYTES), []
        self.rows = [SimpleNamespace(bytes=50)]

    def best(self, budget):
        return min(self.rows, key=lambda row: row.bytes)

    def room_for(self, number):
        return len(self.tried) + number <= self.room

    def menus_without(self, ways):
        names = [name for name in BYTES if name not in {WAYS[way] for way in ways}]
        prices = [Price(n, 0.0, self.bytes[n], 0.0, 1.0) for n in names]
        return [Menu("u", 1, tuple(prices))]

    def refine(self, support):
        news = {n: size for _, n in support if (size := self.told.pop(n, None))}
        self.bytes.update(news)
        return bool(news)

    def try_all(self, mixes):
        for counts, predicted in mixes:
            ((name, _),) = counts["u"]
            off = 40 if name in self.too_small else 0
            self.tried.append(name)
            self.rows.append(SimpleNamespace(bytes=predicted + off))


@pytest.mark.parametrize(
    ("too_small", "tried"),
    [
        ((), ["written out"]),
        (("written out",), ["written out", "on the host"]),
        (("written out", "on the host"), ["written out", "on the host", "looked at"]),
        (("written out", "on the host", "looked at"), [*BYTES]),
    ],
)
def test_what_needs_least_by_prices_and_then_what_holds_more_surely(too_small, tried):
    search: Any = Searched(too_small)
    try_smallest(search)
    assert search.tried == tried


def test_what_seems_least_is_priced_twice_before_it_is_compiled_whole():
    search: Any = Searched(told={"written out": 7, "on the host": 6, "looked at": 5.5})
    try_smallest(search)
    assert search.tried == ["full"]


@pytest.mark.parametrize("how", [{"budget": 50}, {"room": 0}])
def test_nothing_is_compiled_where_something_fits_or_there_is_no_room(how):
    search: Any = Searched(**how)
    try_smallest(search)
    assert search.tried == []


def test_what_a_limit_kept_out_is_priced_where_nothing_else_fits():
    """Six layers take 43 MiB if all is rebuilt, 23 with their inputs on the host."""
    layer = lambda w, x: jnp.sin(jnp.tanh(x @ w))
    loss = lambda w, x: rr.stack(layer, w, x).sum()
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    specs = array(6, 256, 256), array(4096, 256)
    how = {"budget": "24MiB", "target": "h100:1", "unroll": False}
    fit = rr.fit(loss, *specs, **how, most_compiles=10)
    assert fit.plan.fits
    assert fit.num_compiles <= 10
