"""Meshes: Auto axes, and sentences about sizes that do not fit."""

import jax
import pytest
from jax.sharding import AxisType

from revremat._errors import UserError
from revremat.sharding import complete_axes, make_mesh


def test_axes_are_auto_and_in_order():
    mesh = make_mesh({"data": 2, "model": 4})
    assert mesh.axis_names == ("data", "model")
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert [d.id for d in mesh.devices.flat] == [d.id for d in jax.devices()]


def test_sizes_that_do_not_match_the_devices_are_refused():
    with pytest.raises(UserError, match=r"needs 6 devices and there are 8; make the"):
        make_mesh({"data": 2, "model": 3})


def test_sizes_below_one_are_refused():
    with pytest.raises(UserError, match=r"must be 1 or more, not \{'data': 0\}"):
        make_mesh({"data": 0})


@pytest.mark.parametrize(
    ("sizes", "devices", "completed"),
    [
        ({"data": None, "model": 4}, 8, {"data": 2, "model": 4}),
        ({"data": None}, 2240, {"data": 2240}),
        ({"data": 1, "fsdp": None, "model": 1}, 1, {"data": 1, "fsdp": 1, "model": 1}),
        ({"data": 2, "model": 4}, 8, {"data": 2, "model": 4}),
    ],
)
def test_the_open_axis_takes_what_the_others_leave(sizes, devices, completed):
    assert complete_axes(sizes, devices) == completed


def test_two_open_axes_are_refused():
    with pytest.raises(UserError, match="all left open; give all but one a size"):
        complete_axes({"data": None, "fsdp": None}, 8)


def test_an_open_axis_needs_a_divisor():
    with pytest.raises(UserError, match="3 does not divide 8 devices"):
        complete_axes({"data": None, "model": 3}, 8)
