"""What the compiler made: targets, compiles, liveness, origins and time."""

from revremat.xla._artifact import Artifact as Artifact
from revremat.xla._cards import GPU_CARDS as GPU_CARDS
from revremat.xla._cards import Card as Card
from revremat.xla._cards import load_card as load_card
from revremat.xla._clock import estimate as estimate
from revremat.xla._compile import DoesNotFitError as DoesNotFitError
from revremat.xla._compile import Lowered as Lowered
from revremat.xla._compile import compile_step as compile_step
from revremat.xla._compile import lower_step as lower_step
from revremat.xla._compile import read_compiled as read_compiled
from revremat.xla._curve import memory_curve as memory_curve
from revremat.xla._dumps import find_dump as find_dump
from revremat.xla._dumps import read_dump as read_dump
from revremat.xla._hlo import Module as Module
from revremat.xla._kernels import has_opaque_kernels as has_opaque_kernels
from revremat.xla._liveness import Heap as Heap
from revremat.xla._liveness import Liveness as Liveness
from revremat.xla._liveness import liveness as liveness
from revremat.xla._origin import Origins as Origins
from revremat.xla._peak import peak_buffers as peak_buffers
from revremat.xla._platforms import ignore_absent_devices as ignore_absent_devices
from revremat.xla._platforms import request_cpu_devices as request_cpu_devices
from revremat.xla._targets import Target as Target
from revremat.xla._targets import target as target
from revremat.xla._unmodeled import unmodeled_calls as unmodeled_calls
from revremat.xla._what_if import what_if as what_if
