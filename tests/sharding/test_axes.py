"""Names of dimensions become mesh axes by one table, and nothing is guessed."""

import pytest

from revremat import UserError
from revremat.sharding import AxisRules, megatron

SIZES = {"data": 2, "fsdp": 2, "model": 2}


@pytest.mark.parametrize(
    ("names", "plain", "sequence", "fsdp"),
    [
        # activations: tensor parallel, with sequence parallelism, with FSDP
        (("batch", "length", "embed"), ("data",), ("data",), (("data", "fsdp"),)),
        (
            ("batch", "norm_length", "embed"),
            ("data",),
            ("data", "model"),
            (("data", "fsdp"),),
        ),
        (
            ("batch", "length", "mlp"),
            ("data", None, "model"),
            ("data", None, "model"),
            (("data", "fsdp"), None, "model"),
        ),
        (("heads", None), ("model",), ("model",), ("model",)),
        (("layers", "kv"), (), (), ()),
    ],
)
def test_activations_lie_where_their_names_say(names, plain, sequence, fsdp):
    shape = (8,) * len(names)
    kinds = megatron(), megatron(sequence=True), megatron(fsdp="fsdp")
    found = [tuple(rules.spec(names, shape, SIZES)) for rules in kinds]
    assert found == [plain, sequence, fsdp]


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        (("embed", "mlp"), ("fsdp", "model")),
        (("vocab", "embed"), ("model", "fsdp")),
        (("layers", "embed"), (None, "fsdp")),
        (("mlp",), ("model",)),
    ],
)
def test_weights_are_cut_along_embed_where_batches_are(names, spec):
    rules = megatron(fsdp="fsdp")
    shape = (8,) * len(names)
    assert tuple(rules.spec(names, shape, SIZES, is_weight=True)) == spec


def test_an_axis_of_one_device_cuts_nothing():
    one = megatron().spec(("batch", "mlp"), (3, 5), {"data": 1, "model": 1})
    assert tuple(one) == ()


@pytest.mark.parametrize(
    ("names", "shape", "sizes", "message"),
    [
        (("btach", "mlp"), (8, 8), SIZES, "'btach' has no rule; .*batch, embed"),
        (("batch",), (8, 8), SIZES, "1 names and 2 dimensions"),
        (
            ("mlp", "heads"),
            (8, 8),
            SIZES,
            "'mlp' and 'heads' are both cut over 'model'",
        ),
        (("mlp",), (7,), SIZES, "into 2 parts, which do not divide 7"),
        (("mlp",), (8,), {"data": 2}, "cut over 'model', and the mesh has only data"),
    ],
)
def test_what_cannot_be_laid_out_is_told_with_the_array(names, shape, sizes, message):
    with pytest.raises(UserError, match=message) as error:
        megatron().spec(names, shape, sizes, array="the queries")
    assert str(error.value).startswith(f"the queries of shape {shape}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: megatron(axis="data"), "'data' stands for two kinds"),
        (lambda: megatron(data="x", fsdp="x"), "'x' stands for two kinds"),
        (lambda: megatron(more={"mlp": ()}), "'mlp' has a rule, .* and another one"),
        (lambda: AxisRules({"a": ()}, gathered={"a": "b"}), "'b' has no rule"),
    ],
)
def test_two_rules_for_one_name_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_names_of_ones_own_are_added():
    rules = megatron(more={"classes": "model", "channel": ()})
    assert tuple(rules.spec(("classes", "channel"), (8, 3), SIZES)) == ("model",)
