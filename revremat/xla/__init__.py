"""What the compiler made: targets, compiles, liveness, origins and time."""

from revremat.xla.compile._artifact import Artifact as Artifact
from revremat.xla.compile._compile import compile_step as compile_step
from revremat.xla.compile._compile import lower_step as lower_step
from revremat.xla.compile._compile import lower_traced as lower_traced
from revremat.xla.compile._disk import cache_folder as cache_folder
from revremat.xla.compile._dumps import find_dump as find_dump
from revremat.xla.compile._dumps import read_dump as read_dump
from revremat.xla.compile._lowered import Lowered as Lowered
from revremat.xla.compile._lowered import read_compiled as read_compiled
from revremat.xla.compile._remat_pass import remat_pass_options as remat_pass_options
from revremat.xla.compile._remat_pass import remat_pass_percent as remat_pass_percent
from revremat.xla.compile._remat_pass import remat_pass_refusal as remat_pass_refusal
from revremat.xla.compile._step_forms import check_stage as check_stage
from revremat.xla.compile._step_forms import stage_of as stage_of
from revremat.xla.hlo._hlo import Module as Module
from revremat.xla.hlo._kernel_key import kernel_key as kernel_key
from revremat.xla.hlo._kernels import has_opaque_kernels as has_opaque_kernels
from revremat.xla.hlo._origin import Origins as Origins
from revremat.xla.memory._curve import memory_curve as memory_curve
from revremat.xla.memory._liveness import Heap as Heap
from revremat.xla.memory._liveness import Liveness as Liveness
from revremat.xla.memory._liveness import liveness as liveness
from revremat.xla.memory._peak import peak_buffers as peak_buffers
from revremat.xla.memory._what_if import what_if as what_if
from revremat.xla.step_time._cost import Cost as Cost
from revremat.xla.step_time._cost import Matmul as Matmul
from revremat.xla.step_time._cost import cost_of as cost_of
from revremat.xla.step_time._evaluations import Evaluations as Evaluations
from revremat.xla.step_time._evaluations import evaluations_of as evaluations_of
from revremat.xla.step_time._exchanges import collectives_of as collectives_of
from revremat.xla.step_time._instructions import InstructionTime as InstructionTime
from revremat.xla.step_time._instructions import instruction_times as instruction_times
from revremat.xla.step_time._instructions import instruction_us as instruction_us
from revremat.xla.step_time._roofline import rate_at as rate_at
from revremat.xla.step_time._step_time import estimate as estimate
from revremat.xla.step_time._unmodeled import unmodeled_calls as unmodeled_calls
from revremat.xla.target._absent_devices import traced_for as traced_for
from revremat.xla.target._cards import GPU_CARDS as GPU_CARDS
from revremat.xla.target._cards import MEASURABLE as MEASURABLE
from revremat.xla.target._cards import Card as Card
from revremat.xla.target._cards import load_card as load_card
from revremat.xla.target._cards import measured_folder as measured_folder
from revremat.xla.target._cards import with_changes as with_changes
from revremat.xla.target._platforms import (
    ignore_absent_devices as ignore_absent_devices,
)
from revremat.xla.target._platforms import request_cpu_devices as request_cpu_devices
from revremat.xla.target._targets import Target as Target
from revremat.xla.target._targets import target as target
