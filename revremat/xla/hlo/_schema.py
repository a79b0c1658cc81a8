"""The part of XLA's protobuf schema that we read, as message classes.

Neither jaxlib nor any small package ships these classes, and a compiled dump of a
large model has tens of megabytes, so the fields we need are declared here and
protobuf's own C parser does the reading; fields we do not name are skipped.
Numbers are those of XLA's `hlo.proto` and `xla_data.proto`; 92 and 93 of an
instruction are the replica groups of jaxlib >= 0.11.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# message: "number name type", a star marks repeated fields.
_MESSAGES = {
    "Layout": "1 minor_to_major* int64, 7 element_size_in_bits int64, "
    "8 memory_space int64",
    "Shape": "2 element_type int32, 3 dimensions* int64, 4 tuple_shapes* Shape, "
    "5 layout Layout",
    "Metadata": "1 op_type string, 2 op_name string, 3 source_file string, "
    "4 source_line int32, 15 stack_frame_id int32",
    "WindowDimension": "1 size int64, 2 stride int64, 3 padding_low int64, "
    "4 padding_high int64, 5 window_dilation int64, 6 base_dilation int64",
    "PaddingDimension": "1 low int64, 2 high int64, 3 interior int64",
    "Padding": "1 dimensions* PaddingDimension",
    "Window": "1 dimensions* WindowDimension",
    "ConvolutionDimensions": "7 input_batch int64, 8 input_feature int64, "
    "11 input_spatial* int64, 3 kernel_input_feature int64, "
    "4 kernel_output_feature int64, 6 kernel_spatial* int64, "
    "9 output_batch int64, 10 output_feature int64, 12 output_spatial* int64",
    "DotDimensions": "1 lhs_contracting* int64, 2 rhs_contracting* int64, "
    "3 lhs_batch* int64, 4 rhs_batch* int64",
    "ReplicaGroup": "1 replica_ids* int64",
    "IotaGroups": "1 num_groups int64, 2 group_size int64, 3 reshape_dims* int64, "
    "4 transpose_perm* int32",
    "DeviceList": "1 groups* ReplicaGroup, 2 iota IotaGroups",
    "MeshAxis": "1 name string, 2 size int64",
    "MeshSubAxis": "1 pre_size int64, 2 size int64",
    "MeshAxisRef": "1 index int64, 2 sub_axis MeshSubAxis",
    "Mesh": "1 axes* MeshAxis, 2 device_ids* int64",
    "MeshGroups": "1 mesh Mesh, 2 axes* MeshAxisRef",
    "Slice": "1 start int64, 2 limit int64, 3 stride int64",
    "SourceTarget": "1 source int64, 2 target int64",
    "OutputOperandAliasing": "1 output_index* int64, 2 operand int64, "
    "3 operand_index* int64",
    "Literal": "2 preds* bool, 4 s32s* int32, 5 s64s* int64, 6 u32s* uint32, "
    "7 u64s* uint64",
    "Precision": "1 operands* int32, 2 algorithm int32",
    "Instruction": "1 name string, 2 opcode string, 3 shape Shape, "
    "7 metadata Metadata, 8 literal Literal, 9 parameter_number int64, "
    "11 fusion_kind string, "
    "13 tuple_index int64, 14 dimensions* int64, 15 window Window, "
    "16 convolution ConvolutionDimensions, 50 feature_group_count int64, "
    "17 slices* Slice, 21 padding Padding, 20 dynamic_slice_sizes* int64, "
    "58 batch_group_count int64, 28 custom_call_target string, 30 dot DotDimensions, "
    "63 comparison_direction string, 40 sharding bytes, "
    "35 id int64, 36 operand_ids* int64, 37 control_predecessor_ids* int64, "
    "38 called_computation_ids* int64, 43 backend_config bytes, "
    "49 replica_groups* ReplicaGroup, 51 precision Precision, "
    "52 source_target_pairs* SourceTarget, 68 frontend_attributes bytes, "
    "74 output_operand_aliasing* OutputOperandAliasing, "
    "87 device_list DeviceList, 92 iota_groups IotaGroups, 93 mesh_groups MeshGroups",
    "ProgramShape": "1 parameters* Shape, 2 result Shape, 3 parameter_names* string",
    "Computation": "1 name string, 2 instructions* Instruction, 5 id int64, "
    "6 root_id int64, 7 is_fusion_computation bool, 8 execution_thread string",
    "InstructionSequence": "1 instruction_ids* int64",
    "ScheduleEntry": "1 key int64, 2 value InstructionSequence",
    "Schedule": "1 sequences* ScheduleEntry",
    "AliasEntry": "1 output_shape_index* int64, 2 parameter_number int64, "
    "3 parameter_shape_index* int64, 4 kind int32",
    "InputOutputAlias": "1 entries* AliasEntry",
    "FileLocation": "1 file_name_id int32, 2 function_name_id int32, 3 line int32",
    "StackFrame": "1 file_location_id int32, 2 parent_frame_id int32",
    "StackFrameIndex": "1 file_names* string, 2 function_names* string, "
    "3 file_locations* FileLocation, 4 stack_frames* StackFrame",
    "Module": "1 name string, 2 entry_computation_name string, "
    "3 computations* Computation, 4 program_shape ProgramShape, 5 id int64, "
    "6 entry_computation_id int64, 7 schedule Schedule, "
    "8 input_output_alias InputOutputAlias, 17 stack_frame_index StackFrameIndex",
    "Location": "2 instruction_name string, 3 shape_index* int64, "
    "4 instruction_id int64",
    "LogicalBuffer": "1 id int64, 2 size int64, 3 defined_at Location, 4 color int64",
    "BufferAlias": "1 source_buffer_id int64, 2 location Location",
    "Assigned": "1 logical_buffer_id int64, 2 offset int64, 3 size int64",
    "BufferAllocation": "1 index int64, 2 size int64, 3 is_thread_local bool, "
    "5 is_entry_computation_parameter bool, 6 parameter_number int64, "
    "7 maybe_live_out bool, 8 color int64, 9 assigned* Assigned, "
    "10 parameter_shape_index* int64, 11 is_tuple bool, 12 is_constant bool, "
    "13 is_parameter_aliased_with_output bool",
    "TraceEvent": "1 kind int32, 2 buffer_id int64, 3 computation_name string, "
    "4 instruction_name string, 5 share_with_canonical_id int64",
    "HeapTrace": "1 events* TraceEvent, 2 whole_module_simulation bool, "
    "3 buffer_allocation_index int64",
    "BufferAssignment": "1 logical_buffers* LogicalBuffer, "
    "2 buffer_aliases* BufferAlias, 3 buffer_allocations* BufferAllocation, "
    "4 heap_simulator_traces* HeapTrace",
    "HloProto": "1 hlo_module Module, 3 buffer_assignment BufferAssignment",
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="revremat_xla.proto", package="revremat_xla", syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for spec in fields.split(","):
            number, name, kind = spec.split()
            repeated = name.endswith("*")
            field = message.field.add(
                name=name.removesuffix("*"),
                number=int(number),
                label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL,
            )
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".revremat_xla.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"revremat_xla.{name}")
        )
        for name in ("HloProto", "Module")
    }


_CLASSES = _build()
HloProto = _CLASSES["HloProto"]
ModuleProto = _CLASSES["Module"]
