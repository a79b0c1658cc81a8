"""Arguments taken apart into arrays, and what a function has made of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import revremat as rr
from revremat._arguments._arguments import has_modules, take_apart
from revremat._arguments._closed_over import _has_new_tracers, _named, _reached
from revremat._arguments._outcome import outcome_of

ONE, TWO = jnp.ones(2), 2 * jnp.ones(3)
WHOLE = jnp.arange(3)


class Layer(nnx.Module):
    """A weight, a counter, and what is no array."""

    def __init__(self):
        self.kernel = nnx.Param(ONE)
        self.count = nnx.Variable(jnp.zeros(()))
        self.label = "layer"


class Net(nnx.Module):
    def __init__(self):
        self.first, self.second = Layer(), Layer()


class Counter(nnx.Module):
    """No parameter at all."""

    def __init__(self):
        self.count = nnx.Variable(jnp.zeros(()))


def test_leaves_are_told_by_where_they_are():
    found = take_apart([{"a": [ONE, 3.0]}, TWO, (WHOLE, {"b": ONE})])
    assert [leaf.where for leaf in found.leaves] == [
        "argument 0['a'][0]",
        "argument 0['a'][1]",
        "argument 1",
        "argument 2[0]",
        "argument 2[1]['b']",
    ]
    assert [leaf.argument for leaf in found.leaves] == [0, 0, 1, 2, 2]
    assert [leaf.is_param for leaf in found.leaves] == [None] * 5
    assert found.values[1] == 3.0
    assert [c.where for c in found.containers] == [
        "argument 0['a']",
        "argument 0",
        "argument 2[1]",
        "argument 2",
    ]


def test_of_modules_leaves_say_whether_they_are_parameters():
    found = take_apart([ONE, {"net": Net()}])
    about = {leaf.where: leaf.is_param for leaf in found.leaves}
    assert about == {
        "argument 0": None,
        "argument 1['net'].first.count": False,
        "argument 1['net'].first.kernel": True,
        "argument 1['net'].second.count": False,
        "argument 1['net'].second.kernel": True,
    }
    assert [leaf.argument for leaf in found.leaves] == [0, 1, 1, 1, 1]
    (graph,) = found.graphs
    assert (graph.number, graph.first_leaf, graph.num_leaves) == (0, 1, 4)
    assert "layer" in [*found.statics()]


@pytest.mark.parametrize("kind", ["ref", "hijax"])
def test_variables_that_change_as_the_program_runs_are_refused(kind):
    with nnx.var_defaults(**{kind: True}):
        net = Net()
    told = rf"argument 0\['a'\]\.first\.count is a Flax variable with {kind}=True"
    with pytest.raises(rr.UserError, match=told):
        take_apart([{"a": net}])


def test_a_problems_name_is_given_by_name():
    assert rr.Problem(jnp.sum, (ONE,), None, (), name="sums").name == "sums"
    with pytest.raises(TypeError):
        rr.Problem(jnp.sum, (ONE,), None, (), "sums")  # pyright: ignore


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([ONE, TWO], [True, False]),
        ([{"a": ONE, "b": WHOLE}, TWO], [True, False, False]),
        ([WHOLE, TWO], [False, False]),
        ([Layer(), ONE], [False, True, False]),  # the parameter alone
        ([Counter(), ONE], [True, False]),  # there is no parameter
        ([(Layer(), TWO), ONE], [False, True, True, False]),
        ([(Counter(), TWO), ONE], [False, True, False]),
        ([ONE, Layer()], [True, False, False]),
    ],
)
def test_differentiated_is_the_first_argument_and_of_modules_the_parameters(
    args, wanted
):
    is_float = lambda aval: jnp.issubdtype(aval.dtype, jnp.floating)
    assert [*take_apart(args).wanted(is_float)] == wanted


@pytest.mark.parametrize(
    ("args", "has"),
    [
        ([ONE, {"a": TWO}], False),
        ([Layer()], True),
        ([ONE, {"a": [Layer()]}], True),
        ([nnx.Param(ONE)], True),
        ([], False),
    ],
)
def test_modules_are_found_at_any_depth(args, has):
    assert has_modules(args) == has


def test_a_copy_is_around_other_arrays_and_shares_nothing_that_can_be_written():
    given: Any = [{"a": [ONE]}, Net(), ONE]
    found = take_apart(given)
    values = [jnp.full(jnp.shape(v), k) for k, v in enumerate(found.values)]
    copy = found.copy(values)
    tree, net, last = copy.args
    assert tree["a"][0] is values[0]
    assert tree is not given[0]
    assert tree["a"] is not given[0]["a"]
    assert last is values[-1]
    assert [float(net.first.count[...]), float(net.second.kernel[...][0])] == [1, 4]
    assert net.first.label == "layer"
    assert float(given[1].second.kernel[...][0]) == 1


def test_as_trees_modules_are_nested_dicts():
    found = take_apart([Net(), {"x": ONE}, nnx.Param(TWO)])
    net, tree, alone = found.as_trees([*range(6)])
    assert net == {
        "first": {"count": 0, "kernel": 1},
        "second": {"count": 2, "kernel": 3},
    }
    assert (tree, alone) == ({"x": 4}, 5)


# ---- What was changed ----------------------------------------------------------------


def looked(function, *args):
    """What a function has made of its arguments, and the arrays of that."""
    arguments = take_apart(args)
    found: list[Any] = []

    def run(*values):
        copy = arguments.copy(values)
        outcome, arrays = outcome_of(copy, function(*copy.args))
        found[:] = [outcome]
        return arrays

    arrays = jax.jit(run)(*arguments.values)
    return found[0], arrays


def sets_a_variable(net, tree, x):
    net.first.count[...] += 1
    return x.sum()


def sets_an_attribute(net, tree, x):
    net.first.label = "other"
    return x.sum()


def adds_an_attribute(net, tree, x):
    net.more = nnx.Variable(x)
    return x.sum()


def sets_a_key(net, tree, x):
    tree["a"] = x
    return x.sum()


def swaps_variables(net, tree, x):
    net.first.count, net.second.count = net.second.count, net.first.count
    return x.sum()


def sets_what_was_there(net, tree, x):
    net.first.count[...] = net.first.count[...]
    tree["a"] = tree["a"]
    return x.sum()


def returns_all(net, tree, x):
    return x.sum(), (net, tree, x + 1, "text")


@pytest.mark.parametrize(
    ("function", "is_change", "only_variables", "num_returned"),
    [
        (lambda net, tree, x: x.sum(), False, True, 1),
        (sets_what_was_there, False, True, 1),
        (sets_a_variable, True, True, 1),
        (sets_an_attribute, True, False, 1),
        (adds_an_attribute, True, False, 1),
        (swaps_variables, True, True, 1),  # what they hold
        (sets_a_key, True, True, 1),
        (lambda net, tree, x: 3.0, False, True, 0),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_changes_are_seen(function, is_change, only_variables, num_returned):
    outcome, arrays = looked(function, Net(), {"a": TWO}, ONE)
    assert outcome.is_change == is_change
    assert outcome.only_variables == only_variables
    assert outcome.num_returned == num_returned <= len(arrays)


def written(function):
    """The arguments after what the function wrote is written back."""
    args: Any = Net(), {"a": TWO}, ONE
    outcome, arrays = looked(function, *args)
    return args, outcome.write(arrays)


def test_a_variable_gets_its_value_and_keeps_its_identity():
    net = Net()
    count, kernel = net.first.count, net.first.kernel
    outcome, arrays = looked(sets_a_variable, net, {"a": TWO}, ONE)
    assert outcome.write(arrays) == 2.0
    assert net.first.count is count
    assert net.first.kernel is kernel
    assert (float(count[...]), float(net.second.count[...])) == (1.0, 0.0)
    # All but the counter are arrays as they were.
    assert len(outcome.untouched) == 3


def test_attributes_are_set_and_added():
    (net, *_), _ = written(sets_an_attribute)
    assert (net.first.label, net.second.label) == ("other", "layer")
    (net, *_), _ = written(adds_an_attribute)
    assert (net.more[...] == ONE).all()


def test_variables_that_were_swapped_have_each_others_values():
    net = Net()
    net.first.count[...], net.second.count[...] = jnp.float32(5), jnp.float32(7)
    outcome, arrays = looked(swaps_variables, net, {}, ONE)
    outcome.write(arrays)
    assert (float(net.first.count[...]), float(net.second.count[...])) == (7, 5)


def test_what_is_returned_of_the_arguments_is_those_arguments():
    args, out = written(returns_all)
    total, (net, tree, more, text) = out
    assert (float(total), text) == (2.0, "text")
    assert net is args[0]
    assert tree is args[1]
    assert (more == ONE + 1).all()


def test_a_container_that_is_new_is_made():
    outcome, arrays = looked(lambda x: {"b": [x, (x + 1, 3)]}, ONE)
    found = outcome.write(arrays)
    assert [*found] == ["b"]
    assert (found["b"][1][0] == ONE + 1).all()
    assert found["b"][1][1] == 3


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ([1, 2], lambda x: x.append(3), [1, 2, 3]),
        ([1, 2], lambda x: x.pop(0), [2]),
        ({"a": 1, "b": 2}, lambda x: x.pop("a"), {"b": 2}),
        ({"b": 1}, lambda x: x.update(a=2), {"b": 1, "a": 2}),
        ({"a": [1]}, lambda x: x["a"].append(2), {"a": [1, 2]}),
    ],
)
def test_containers_are_as_they_were_left(before, change, after):
    def function(tree, x):
        change(tree)
        return x

    outcome, arrays = looked(function, before, ONE)
    assert outcome.is_change
    outcome.write(arrays)
    assert before == after


class Held:
    def __init__(self, total, note="", more=None):
        self.total, self.note, self.more = total, note, more


jax.tree_util.register_pytree_node(
    Held, lambda h: ((h.total,), h.note), lambda note, c: Held(c[0], note)
)


def test_of_an_object_the_attributes_are_written_that_were_set():
    held = Held(ONE, "a", more="stays")

    def function(held, x):
        held.note = "b"
        return x

    outcome, arrays = looked(function, held, ONE)
    ((_, changed),) = outcome.changed.items()
    assert [*changed] == ["note"]
    outcome.write(arrays)
    assert (held.note, held.more) == ("b", "stays")

    def deletes(held, x):
        del held.more
        return x

    with pytest.raises(rr.UserError, match="deletes its attribute 'more'"):
        looked(deletes, held, ONE)


class Pair:
    """A tree whose parts lie where nothing can be written."""

    def __init__(self, *parts):
        self.parts = [*parts]


jax.tree_util.register_pytree_node(
    Pair, lambda pair: (tuple(pair.parts), None), lambda _, parts: Pair(*parts)
)


@pytest.mark.parametrize("changed", [(0,), (1,), (0, 1), ()])
def test_of_what_cannot_be_written_any_part_that_changes_is_refused(changed):
    def function(pair, x):
        for k in changed:
            pair.parts[k] = x
        return x

    if changed:
        with pytest.raises(rr.UserError, match="cannot be written back"):
            looked(function, Pair(ONE, TWO), ONE)
    else:
        assert not looked(function, Pair(ONE, TWO), ONE)[0].is_change


# ---- What is none of the arguments ---------------------------------------------------

SHARED: dict[str, Any] = {"list": [], "deep": {"set": set()}}


def names(function):
    return {name for name, _ in _reached(function, ())}


def test_what_a_function_could_write_into_is_told_by_the_name_it_has_there():
    local: list[Any] = []

    def function(x):
        local.append(x)
        return SHARED

    assert names(function) == {
        "'local'",
        "'SHARED'",
        "'SHARED'['list']",
        "'SHARED'['deep']",
        "'SHARED'['deep']['set']",
    }


def test_what_is_bound_and_what_an_object_has_is_told_too():
    class Trainer:
        def __init__(self):
            self.log = [1]

        def step(self, a, b):
            return a

    bound = functools.partial(Trainer().step, [2], b={"k": 3})
    assert [name for name, _ in _named(bound)][:3] == [
        "bound by functools.partial as 0",
        "bound by functools.partial as b",
        "self.log",
    ]
    assert {name for name, _ in _reached(Trainer.step, ())} == set()
    assert names(bound) == {name for name, _ in _named(bound)}


def test_what_lies_too_deep_is_not_looked_at():
    deep: list[Any] = [[[[[]]]]]

    def function(x):
        return deep

    assert names(function) == {"'deep'" + "[0]" * depth for depth in range(4)}


def test_lists_that_hold_one_another_are_looked_at_once():
    one: list[Any] = []
    one.append(one)

    def function(x):
        return one

    assert names(function) == {"'one'"}


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        (lambda kept, x: None, False),
        (lambda kept, x: kept.append(x), True),
        (lambda kept, x: kept.append("text"), False),
        (lambda kept, x: kept.__setitem__(0, x), True),
        (lambda kept, x: kept.__setitem__(0, 5), False),
        (lambda kept, x: kept.clear(), False),
        (lambda kept, x: kept.insert(0, x), True),
    ],
)
def test_only_traced_values_that_are_new_count(change, is_new):
    found = []

    def function(x):
        kept = [1, x]
        old = kept.copy()
        change(kept, x + 1)
        found.append(_has_new_tracers(kept, old))
        return x

    jax.make_jaxpr(function)(ONE)
    assert found == [is_new]
