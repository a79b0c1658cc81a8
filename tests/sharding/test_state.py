"""State is described before it exists, and is then born where it was described."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from revremat.sharding import (
    FSDP,
    abstract_state,
    bytes_per_device,
    init_sharded,
    make_mesh,
    shardings_of,
)

RULES = (FSDP(min_size=64),)


def init(key):
    return {"w": jax.random.normal(key, (64, 16)), "b": jnp.zeros(16)}


@pytest.fixture
def specs():
    return abstract_state(init, RULES, make_mesh({"fsdp": 8}), jax.random.key(0))


def test_abstract_state_allocates_nothing(specs):
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in specs.values())
    assert specs["w"].sharding.spec == P("fsdp")
    assert specs["b"].sharding.spec == P()


def test_born_state_lies_where_it_was_described(specs):
    state = init_sharded(init, specs, jax.random.key(0))
    assert jax.tree.map(lambda x: x.sharding, state) == shardings_of(specs)
    assert {shard.data.shape for shard in state["w"].addressable_shards} == {(8, 16)}


def test_sharding_does_not_change_the_numbers(specs):
    key = jax.random.key(3)
    assert (init_sharded(init, specs, key)["w"] == init(key)["w"]).all()


def test_initialisation_never_holds_the_whole_on_one_device(specs):
    compiled = (
        jax.jit(init, out_shardings=shardings_of(specs))
        .lower(jax.random.key(0))
        .compile()
    )
    stats = compiled.memory_analysis()
    table_bytes = 8 * len(specs)  # one pointer for each array of the result
    assert stats.output_size_in_bytes == bytes_per_device(specs) + table_bytes
    assert stats.temp_size_in_bytes < 64 * 16 * 4


def test_bytes_per_device_are_the_compilers_argument_bytes(specs):
    assert bytes_per_device(specs) == 64 * 16 * 4 // 8 + 16 * 4
    compiled = jax.jit(lambda s: s).lower(specs).compile()
    stats = compiled.memory_analysis()
    assert stats.argument_size_in_bytes == bytes_per_device(specs)


def test_arrays_without_a_sharding_count_whole():
    assert bytes_per_device({"a": jax.ShapeDtypeStruct((3, 5), jnp.bfloat16)}) == 30
