"""Models as pure functions: the module that goes with a model's config.

Each model module has `init`, `loss_fn`, `metrics_fn`, `batch_specs` and
`tensor_parallel`; a new model is one module and one entry here. One with batch norm has
`init_state` too: its loss takes the state in the batch and returns it moved.
"""

from types import ModuleType
from typing import Any

from experiments.models import fcos, gpt, revbifpn, vit

_MODULES: dict[type, ModuleType] = {
    gpt.GPTConfig: gpt,
    vit.ViTConfig: vit,
    revbifpn.RevBiFPNClassifierConfig: revbifpn,
    fcos.FCOSConfig: fcos,
}


def module_of(config: Any) -> ModuleType:
    """The module whose functions take this config."""
    return _MODULES[type(config)]
