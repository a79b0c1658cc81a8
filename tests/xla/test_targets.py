"""Targets: what people may write, what it stands for, and what is said otherwise."""

import json
import os
import re
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import AxisType

import revremat as rr
from revremat import xla
from revremat.xla.target import _platforms, _targets
from revremat.xla.target._cards import MEASURABLE, load_card

GIB = 2**30


@pytest.mark.parametrize(
    ("spec", "short", "platform", "hosts", "per_host"),
    [
        ("cpu:4", "cpu:4", "cpu", 1, 4),
        ("h100", "h100:1", "cuda", 1, 1),
        (" H100:8 ", "h100:8", "cuda", 1, 8),
        ("h100:1x8", "h100:8", "cuda", 1, 8),
        ("a100:280x8", "a100:280x8", "cuda", 280, 8),
        ("b200:16", "b200:2x8", "cuda", 2, 8),
        ("v100:2x4", "v100:2x4", "cuda", 2, 4),
        ("a6000:2", "a6000:2", "cuda", 1, 2),
        ("h800:8", "h800:8", "cuda", 1, 8),
        ("h200:8", "h200:8", "cuda", 1, 8),
        ("v5e:4x4", "v5e:4x4", "tpu", 4, 4),
        ("v5p:2x2x1", "v5p:2x2x1", "tpu", 1, 4),
    ],
)
def test_every_form_names_devices(spec, short, platform, hosts, per_host):
    target = rr.target(spec)
    assert target.spec == str(target) == short
    assert target.platform == platform
    assert (target.num_hosts, target.devices_per_host) == (hosts, per_host)
    assert target.num_devices == hosts * per_host
    assert rr.target(short) == target
    assert rr.target(target) is target


def local_on(monkeypatch, kind):
    device = SimpleNamespace(platform="gpu", process_index=0, device_kind=kind)
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    return rr.target("local")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA RTX A6000", "a6000"),
        ("TPU v4", "v4"),
        ("TPU v5e", "v5e"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
    ],
)
def test_a_device_is_known_by_what_its_driver_calls_it(monkeypatch, kind, key):
    assert local_on(monkeypatch, kind).card == load_card(key)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("NVIDIA A100-SXM4-40GB", "facts about 'NVIDIA A100-SXM4-80GB' alone"),
        ("NVIDIA A100-PCIE-80GB", "write 'a100:1' for that, and a budget in bytes"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "'NVIDIA A100-SXM4-80GB' alone"),
        ("Tesla V100-SXM2-32GB", "'Tesla V100-SXM2-16GB' alone"),
        ("NVIDIA H100 PCIe", "'NVIDIA H100 80GB HBM3' alone"),
        ("NVIDIA H100 NVL", "'NVIDIA H100 80GB HBM3' alone"),
        ("NVIDIA H200 NVL", "'NVIDIA H200 141GB HBM3e' alone"),
        ("TPU v4 lite", "'TPU v4' alone"),
        ("NVIDIA L4", "'NVIDIA L4', a device revremat has no facts about"),
    ],
)
def test_a_card_of_another_size_or_form_is_not_taken_for_one(monkeypatch, kind, told):
    with pytest.raises(rr.UserError, match=re.escape(told)):
        local_on(monkeypatch, kind)


def test_local_is_this_machine():
    target = rr.target("local")
    assert target.present
    assert target.platform == "cpu"
    assert target.num_devices == len(jax.devices())
    assert target.devices == jax.devices()
    assert target.missing() == ""


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("h101:8", "unknown device 'h101': write one of v100 a100"),
        ("", "unknown device ''"),
        ("h100:", None),
        ("h100:0", "'h100:0' names no number of devices"),
        ("h100:-8", "names no number of devices"),
        ("h100:eight", "names no number of devices"),
        ("h100:2x4x8", "names no number of devices"),
        ("h100:8:8", "names no number of devices"),
        ("cpu:2x4", "names no number of devices"),
        ("local:2", "'local:2' names no part of this machine: .*'cpu:2'"),
        ("h100:12", "more devices than a host holds.*'h100:2x8'"),
        ("v5e:16", "names no slice.*'v5e:4x4'"),
        ("v5e", "names no slice"),
        ("v5e:3x3", "9 chips, which whole hosts of 4 do not make up.*'v5e:4x4'"),
        (8, "a target is text like 'local', 'cpu:8'"),
    ],
)
def test_anything_else_is_told_what_to_write(spec, says):
    if says is None:
        assert rr.target(spec).num_devices == 1
        return
    with pytest.raises(rr.UserError, match=says) as raised:
        rr.target(spec)
    assert "\n" not in str(raised.value)


def test_a_slice_that_its_compiler_does_not_know_is_told():
    with pytest.raises(rr.UserError, match=r"v5e:3x4 knows no such slice: .*'v5e:4x4'"):
        _ = rr.target("v5e:3x4").devices


@pytest.mark.parametrize("key", xla.GPU_CARDS)
def test_usable_memory_is_the_card_less_its_reserve(key):
    one, eight = rr.target(f"{key}:1"), rr.target(f"{key}:8")
    for target in (one, eight):
        assert target.usable_bytes == target.memory_bytes - target.reserve_bytes
        assert GIB // 2 <= target.reserve_bytes < 0.25 * target.memory_bytes
    # NCCL needs its own on more than one card.
    assert eight.reserve_bytes - one.reserve_bytes == one.card.nccl_reserve_bytes > 0


@pytest.mark.parametrize("spec", ["h100:1", "h100:8", "a100:2x8", "v100:1"])
def test_a_schedule_for_an_absent_card_may_fill_what_is_usable(spec):
    target = rr.target(spec)
    text = _targets.gpu_target_config(target)
    (size,) = re.findall(r"device_memory_size: (\d+)", text)
    share = int(size) * 80 // 100  # XLA's
    assert 0 <= share - target.usable_bytes <= 1


@pytest.mark.parametrize("spec", ["h100:1", "h100:8", "a100:1"])
@pytest.mark.parametrize("percent", [20, 50, 100])
def test_a_limit_of_the_remat_pass_is_a_share_of_what_is_usable(spec, percent):
    target = rr.target(spec)
    fixed = target.usable_bytes // 4
    wanted = fixed + (target.usable_bytes - fixed) * percent // 100 + 1
    assert xla.remat_pass_percent(target, wanted, fixed) == percent


def test_cpu_devices_share_their_machine():
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert rr.target("cpu:1").memory_bytes == whole
    assert rr.target("cpu:8").memory_bytes == whole // 8


@pytest.mark.parametrize("spec", ["h100:1", "h100:8", "a100:8", "v100:1", "b200:2x8"])
def test_the_environment_gives_a_run_what_is_usable_and_no_more(spec):
    target = rr.target(spec)
    (name, value), *more = target.environment.items()
    assert (name, more) == ("XLA_CLIENT_MEM_FRACTION", [])
    given = float(value) * target.memory_bytes
    assert target.usable_bytes - 0.001 * target.memory_bytes <= given
    assert given <= target.usable_bytes


def test_only_cards_that_preallocate_need_a_variable():
    assert rr.target("cpu:8").environment == {}
    assert rr.target("v5e:4x4").environment == {}


def test_pinned_memory_of_a_host_is_shared_by_its_devices():
    assert rr.target("h100:8").host_bytes == rr.target("h100:2x8").host_bytes == 8e9
    assert rr.target("h100:1").host_bytes == 64e9


@pytest.mark.parametrize("spec", ["cpu:8", "h100:8", "h100:2x8"])
def test_a_mesh_has_all_devices_and_auto_axes(spec):
    target = rr.target(spec)
    mesh = target.mesh({"data": 2, "model": -1})
    assert dict(mesh.shape) == {"data": 2, "model": target.num_devices // 2}
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert list(mesh.devices.flat) == target.devices


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"data": 3, "model": 2}, r"\{data: 3, model: 2\} has 6 devices but h100:8"),
        ({"data": 4, "model": 4}, "has 16 devices but h100:8 has 8"),
        ({"data": 3, "model": -1}, "write sizes that multiply to 8"),
        ({"data": -1, "model": -1}, "write sizes that multiply to 8"),
        ({"data": 0, "model": -1}, "write sizes that multiply to 8"),
        ({"data": -2, "model": -4}, "write sizes that multiply to 8"),
        ({}, "write sizes that multiply to 8"),
    ],
)
def test_a_mesh_of_another_size_is_refused(axes, says):
    with pytest.raises(rr.UserError, match=says):
        rr.target("h100:8").mesh(axes)


def test_what_is_missing_is_said_in_a_sentence(monkeypatch):
    real = _targets.importlib.util.find_spec
    absent = {"jax_plugins.xla_cuda13", "libtpu"}
    monkeypatch.setattr(
        _targets.importlib.util,
        "find_spec",
        lambda name: None if name in absent else real(name),
    )
    h200 = rr.target("h200:3")  # a number no other test asks for: nothing is cached
    assert h200.missing() == "pip install 'revremat[gpu-targets]' (Linux)"
    assert "revremat[tpu-targets]" in rr.target("v5e:2x2").missing()
    with pytest.raises(rr.UserError, match=r"h200:3 cannot be compiled for here: pip"):
        h200.mesh({"data": 3})


def test_without_any_plugin_there_is_no_package_to_look_in():
    assert not _targets._is_installed("no_such_package.xla_cuda13")
    assert not _targets._is_installed("no_such_package")
    assert _targets._is_installed("jax.numpy")


@pytest.mark.parametrize(
    ("plugin", "pjrt"), [("0.12.0", "0.11.2"), ("0.11.2", "0.11.1"), (None, "0.11.2")]
)
def test_wheels_of_another_version_than_jaxlib_are_missing_too(
    monkeypatch, plugin, pjrt
):
    versions = {
        "jaxlib": "0.11.2",
        "jax-cuda13-plugin": plugin,
        "jax-cuda13-pjrt": pjrt,
    }

    def version(wheel):
        if versions[wheel] is None:
            raise _targets.importlib.metadata.PackageNotFoundError
        return versions[wheel]

    monkeypatch.setattr(_targets.importlib.metadata, "version", version)
    says = rr.target("h100:1").missing()
    line = "pip install jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2"
    assert says.startswith(line)
    assert f"jax-cuda13-plugin {plugin or 'none'}, jax-cuda13-pjrt {pjrt}" in says


def test_too_few_cpu_devices_say_what_to_set():
    many = len(jax.devices("cpu")) + 1
    says = f"set JAX_NUM_CPU_DEVICES={many}"
    assert says in rr.target(f"cpu:{many}").missing()
    with pytest.raises(rr.UserError, match=says):
        rr.target(f"cpu:{many}").mesh({"data": many})


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """A folder of measured cards."""
    monkeypatch.setenv("REVREMAT_CARDS", str(tmp_path))
    return tmp_path


def test_a_measured_card_replaces_the_defaults(cards):
    default = rr.target("h100:8")
    measured = {
        "reserve_bytes": 3 * GIB,
        "matmul_efficiency": 0.5,
        "peak_flops": {"float32": 1e12},
        "name": "not measurable",
    }
    (cards / "h100.json").write_text(json.dumps({"card": measured, "suite": []}))
    target = rr.target("h100:8")
    assert target.card.measured
    assert not default.card.measured
    assert target.reserve_bytes == 3 * GIB + target.card.nccl_reserve_bytes
    assert target.usable_bytes < default.usable_bytes
    assert target.environment != default.environment
    assert target.card.matmul_efficiency == 0.5
    assert target.card.name == default.card.name
    # Figures that were not measured stay.
    assert target.card.peak_flops["float32"] == 1e12
    assert target.card.peak_flops["bfloat16"] == default.card.peak_flops["bfloat16"]
    assert not rr.target("a100:8").card.measured


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"suite": []}',
        '{"card": 3}',
        '{"card": {"reserve_bytes": "1 GiB"}}',
        '{"card": {"reserve_bytes": -1}}',
        '{"card": {"matmul_efficiency": 0}}',
        '{"card": {"matmul_efficiency": NaN}}',
        '{"card": {"peak_flops": 1e12}}',
        '{"card": {"peak_flops": {"float32": null}}}',
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_measurement_is_told_and_not_used(cards, text):
    data = text if isinstance(text, bytes) else text.encode()
    (cards / "h100.json").write_bytes(data)
    with pytest.raises(
        rr.UserError, match=r"device figures in .*h100\.json cannot be read"
    ):
        rr.target("h100:8")


def test_all_measurable_fields_are_fields_of_a_card():
    card = xla.load_card("h100")
    assert all(hasattr(card, name) for name in MEASURABLE)


@pytest.mark.parametrize(
    ("sign", "is_found"),
    [
        ("proc/driver/nvidia/version", True),
        ("dev/nvidiactl", True),  # in a container that hides the driver
        ("dev/nvidia0", True),
        ("dev/dxg", True),  # Linux within Windows
        ("dev/null", False),
        ("proc/driver/rtc", False),
    ],
)
def test_a_card_is_found_by_its_driver_or_its_device_files(tmp_path, sign, is_found):
    assert not _platforms.has_nvidia_device(tmp_path)
    place = tmp_path / sign
    place.parent.mkdir(parents=True)
    place.touch()
    assert _platforms.has_nvidia_device(tmp_path) is is_found
