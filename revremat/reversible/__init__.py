"""How a block can be inverted: couplings, chains of them, and exact arithmetic.

Flax modules and the models that ship are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from revremat.reversible._chain import Repeat as Repeat
from revremat.reversible._chain import Sequential as Sequential
from revremat.reversible._chain import chain as chain
from revremat.reversible._check import InverseRow as InverseRow
from revremat.reversible._check import InverseTable as InverseTable
from revremat.reversible._check import check_inverse as check_inverse
from revremat.reversible._coupling import Coupling as Coupling
from revremat.reversible._coupling import Custom as Custom
from revremat.reversible._coupling import Halves as Halves
from revremat.reversible._coupling import Parallel as Parallel
from revremat.reversible._coupling import Step as Step
from revremat.reversible._coupling import Steps as Steps
from revremat.reversible._couplings import Rearrange as Rearrange
from revremat.reversible._couplings import additive as additive
from revremat.reversible._couplings import affine as affine
from revremat.reversible._couplings import depth_to_space as depth_to_space
from revremat.reversible._couplings import momentum as momentum
from revremat.reversible._couplings import reformer as reformer
from revremat.reversible._couplings import silo as silo
from revremat.reversible._couplings import space_to_depth as space_to_depth
from revremat.reversible._exact import check_range as check_range
from revremat.reversible._exact import exact as exact
from revremat.reversible._exact import to_grid as to_grid
from revremat.reversible._joins import Add as Add
from revremat.reversible._joins import Affine as Affine
from revremat.reversible._joins import Blend as Blend
from revremat.reversible._joins import Join as Join

if TYPE_CHECKING:
    from revremat.reversible._from_plain import RevResidual as RevResidual
    from revremat.reversible._from_plain import from_plain as from_plain
    from revremat.reversible._revbifpn import REVBIFPN as REVBIFPN
    from revremat.reversible._revbifpn import RevBiFPN as RevBiFPN
    from revremat.reversible._revbifpn import RevBiFPNConfig as RevBiFPNConfig
    from revremat.reversible._revbifpn_weights import revbifpn_state as revbifpn_state
    from revremat.reversible._revnet import RevNet as RevNet
    from revremat.reversible._revnet import RevNetConfig as RevNetConfig
    from revremat.reversible._transformers import RevGPT as RevGPT
    from revremat.reversible._transformers import RevGPTConfig as RevGPTConfig
    from revremat.reversible._transformers import RevViT as RevViT
    from revremat.reversible._transformers import RevViTConfig as RevViTConfig
    from revremat.reversible.nnx import RevBlock as RevBlock
    from revremat.reversible.nnx import RevModule as RevModule
    from revremat.reversible.nnx import RevParallel as RevParallel
    from revremat.reversible.nnx import RevScan as RevScan
    from revremat.reversible.nnx import RevSequence as RevSequence
    from revremat.reversible.nnx import RevSilo as RevSilo

_LAZY = {
    "_from_plain": ("RevResidual", "from_plain"),
    "_revbifpn": ("REVBIFPN", "RevBiFPN", "RevBiFPNConfig"),
    "_revbifpn_weights": ("revbifpn_state",),
    "_revnet": ("RevNet", "RevNetConfig"),
    "_transformers": ("RevGPT", "RevGPTConfig", "RevViT", "RevViTConfig"),
    "nnx": (
        *("RevBlock", "RevModule", "RevParallel", "RevScan", "RevSequence", "RevSilo"),
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in _LAZY.values() for name in names)})
