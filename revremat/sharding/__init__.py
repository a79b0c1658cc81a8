"""Where things live: meshes, rules, state that is born sharded, and activations."""

from revremat.sharding._axes import AxisRules as AxisRules
from revremat.sharding._axes import axial as axial
from revremat.sharding._axes import context_parallel as context_parallel
from revremat.sharding._axes import data_parallel as data_parallel
from revremat.sharding._axes import megatron as megatron
from revremat.sharding._expected import unexpected as unexpected
from revremat.sharding._layout import Layout as Layout
from revremat.sharding._logical import Logical as Logical
from revremat.sharding._mesh import complete_axes as complete_axes
from revremat.sharding._mesh import make_mesh as make_mesh
from revremat.sharding._ring import ring_attention as ring_attention
from revremat.sharding._ring import zigzag as zigzag
from revremat.sharding._ring_kernels import CudnnKernel as CudnnKernel
from revremat.sharding._ring_kernels import RingKernel as RingKernel
from revremat.sharding._rules import FSDP as FSDP
from revremat.sharding._rules import ByPath as ByPath
from revremat.sharding._rules import Replicate as Replicate
from revremat.sharding._rules import Rule as Rule
from revremat.sharding._rules import place as place
from revremat.sharding._rules import resolve as resolve
from revremat.sharding._state import abstract_state as abstract_state
from revremat.sharding._state import bytes_per_device as bytes_per_device
from revremat.sharding._state import init_sharded as init_sharded
from revremat.sharding._state import shardings_of as shardings_of
from revremat.sharding._state import with_shardings as with_shardings
from revremat.sharding._under import under as under
