"""Configs: frozen, changed by name, and every mistake one sentence."""

import dataclasses
import importlib

import pytest

from experiments import cli, configs
from experiments.configs.common import known_keys, override
from experiments.configs.gpt import config as gpt
from experiments.train import main
from revremat import UserError


@pytest.mark.parametrize("name", configs.names())
def test_every_experiment_states_its_command_and_what_to_expect(name):
    text = importlib.import_module(f"experiments.configs.{name}").__doc__
    assert "\nCommand:\n" in text
    assert f"{name}" in text.split("Command:")[1]
    expected = text.split("\nExpected:")[1]
    assert any(character.isdigit() for character in expected)


@pytest.mark.parametrize("name", configs.names())
def test_every_experiment_is_named_like_its_file_and_frozen(name):
    config = configs.load(name)
    assert config.name == name
    hash(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.width = 1


@pytest.mark.parametrize(
    ("name", "value", "key", "result"),
    [
        ("model.num_layers", 24, "model.num_layers", 24),
        ("num_layers", "24", "model.num_layers", 24),
        ("learning_rate", "1e-4", "optim.learning_rate", 1e-4),
        ("learning_rate", 1, "optim.learning_rate", 1.0),
        ("tied", "False", "model.tied", False),
        ("tied", True, "model.tied", True),
        ("norm", "rms", "model.norm", "rms"),
        ("sharding.data", None, "sharding.data", None),
        ("sharding.data", "None", "sharding.data", None),
        ("sharding.data", "4", "sharding.data", 4),
        ("data.path", "/there", "data.path", "/there"),
    ],
)
def test_override_by_full_or_short_name(name, value, key, result):
    before, after = known_keys(gpt), known_keys(override(gpt, {name: value}))
    assert after[key] == result
    assert type(after[key]) is type(result)
    assert {k: v for k, v in after.items() if k != key} == {
        k: v for k, v in before.items() if k != key
    }


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("num_layer", 2, r"unknown config key 'num_layer'; known are: name, model\.vo"),
        ("data.name2", 2, "unknown config key"),
        ("name", "x", None),
        ("num_layers", "four", "'model.num_layers' is 'four'; it takes a whole number"),
        ("num_layers", 2.5, "is 2.5; it takes a whole number"),
        ("num_layers", True, "is True; it takes a whole number"),
        ("norm", "batch", "is 'batch'; it takes one of 'layer', 'rms'"),
        ("tied", "maybe", "is 'maybe'; it takes True or False"),
        ("learning_rate", "fast", "is 'fast'; it takes a number"),
        ("data.path", 3, "is 3; it takes text"),
    ],
)
def test_override_refuses_in_one_sentence(name, value, sentence):
    if sentence is None:  # a full name wins over names that end in it
        assert override(gpt, {name: value}).name == "x"
        return
    with pytest.raises(UserError, match=sentence):
        override(gpt, {name: value})


def test_an_ambiguous_short_name_lists_its_meanings():
    @dataclasses.dataclass(frozen=True)
    class Part:
        size: int = 1

    @dataclasses.dataclass(frozen=True)
    class Whole:
        a: Part
        b: Part

    with pytest.raises(UserError, match=r"write a\.size or b\.size"):
        override(Whole(Part(), Part()), {"size": 2})


def test_the_command_line_changes_values():
    line = (
        "gpt --model.num-layers 24 --model.tied False --sharding.fsdp=2 "
        "--optim.learning_rate 1e-2 --data.name digits --sharding.data None"
    )
    config = cli.parse(line.split())
    expected = {
        "num_layers": 24,
        "tied": False,
        "fsdp": 2,
        "learning_rate": 1e-2,
        "data.name": "digits",
        "sharding.data": None,
    }
    assert config == override(gpt, expected)


def test_the_command_line_takes_a_config_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from experiments.configs.common import Experiment\n"
        "from experiments.models.vit import ViTConfig\n"
        "config = Experiment(name='mine', model=ViTConfig())\n"
    )
    assert cli.parse([str(file), "--model.width", "32"]).model.width == 32
    file.write_text("")
    with pytest.raises(UserError, match="has no `config = Experiment"):
        cli.parse([str(file)])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "which experiment? fcos_digits, gpt, "),
        ("gtp", "unknown experiment 'gtp'; known are: fcos_digits, gpt, "),
        ("missing.py", "there is no config file missing.py"),
        ("gpt --model.num-layer 3", "(did you mean --model.num-layers?); known are: "),
        ("gpt --nonsense", "unknown config key --nonsense; known are: --name, "),
        ("gpt --model.num-layers", "--model.num-layers needs a value"),
        ("gpt --model.num-layers four", "it takes a whole number"),
        ("gpt --model.norm batch", "it takes one of 'layer', 'rms'"),
        ("gpt model.width=3", "'model.width=3' is not a `--KEY VALUE`"),
    ],
)
def test_bad_commands_are_one_sentence_and_exit_code_2(capsys, line, sentence):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("line", ["--help", "gpt --help"])
def test_help_is_help(capsys, line):
    with pytest.raises(SystemExit) as ending:
        main(line.split())
    assert ending.value.code == 0
    assert "usage:" in capsys.readouterr().out
