"""What an instruction of HLO is: one table, by opcode, and the sets that follow.

An opcode that is not in the table computes something, and takes time for it.
"""

_TRAITS = {
    "free": "takes no time: it computes nothing and moves nothing",
    "no event": "is left out of the timeline",
    "fill": "takes no array: its value is given, or made of little",
    "passes on": "gives the value that it takes, in another form or place",
    "slice": "gives a part of what it takes",
    "move": "reads and writes, and computes nothing",
    "layout": "may stand in a fusion that only moves data",
    "writes only": "reads next to nothing of memory",
    "same rank": "its dimensions are those of its operands, in order",
    "not tiled": "keeps XLA from transposing a fusion tile by tile",
    "counter": "gives a loop's counter as it is",
    "elementwise": "a tile of the result is made of the same tile of the operands",
    "tileable": "a tile of the result is made of tiles of the operands, however cut",
    "transcendental": "an element costs several additions",
    "no model": "its arithmetic is not known",
    "collective": "devices exchange data",
    "call": "runs other computations",
}

_OPCODES = (
    # Traits, and all such opcodes; each stands here once.
    (
        "free, no event, fill, layout, writes only, tileable",
        "parameter",
    ),
    (
        "free, no event, fill, layout, writes only, not tiled, tileable",
        "constant",
    ),
    (
        "free, no event, passes on, layout, writes only, counter",
        "bitcast",
    ),
    ("free, passes on", "bitcast-convert domain"),
    ("free, no event, passes on, counter", "optimization-barrier"),
    ("free, no event, layout", "tuple"),
    (
        "free, no event",
        "get-tuple-element after-all opt-barrier partition-id replica-id",
    ),
    ("free", "add-dependency"),
    ("passes on", "copy-start copy-done"),
    (
        "fill, move, layout, writes only, not tiled, tileable",
        "broadcast",
    ),
    ("fill, move", "iota"),
    ("passes on, move, layout", "transpose"),
    ("passes on, move, layout, counter", "reshape"),
    ("passes on, move, layout, counter, same rank", "copy"),
    ("slice, move, layout, same rank", "slice"),
    ("slice, move, not tiled, same rank", "dynamic-slice"),
    ("move, same rank", "dynamic-update-slice concatenate pad reverse"),
    ("move, same rank, counter, elementwise", "convert"),
    ("move, same rank, elementwise", "select"),
    ("move, elementwise", "reduce-precision"),
    ("move", "gather"),
    ("same rank, elementwise", "compare clamp"),
    (
        "elementwise, transcendental",
        "exponential exponential-minus-one log log-plus-one tanh logistic sine cosine "
        "tan power erf rsqrt sqrt cbrt atan2 divide",
    ),
    (
        "elementwise",
        "abs add and ceil floor is-finite maximum minimum multiply negate not or "
        "remainder round-nearest-afz round-nearest-even shift-left "
        "shift-right-arithmetic shift-right-logical sign subtract xor",
    ),
    ("tileable", "dot"),
    ("no model", "cholesky fft sort topk triangular-solve"),
    (
        "collective",
        "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all "
        "collective-permute collective-broadcast",
    ),
    ("call", "while conditional call"),
)


def _having(trait: str) -> frozenset[str]:
    assert trait in _TRAITS
    return frozenset(
        opcode
        for traits, opcodes in _OPCODES
        if trait in traits.split(", ")
        for opcode in opcodes.split()
    )


FREE = _having("free")
NO_EVENT = _having("no event")
FILLS = _having("fill")
PASSES_ON = _having("passes on")
SLICES = _having("slice")
MOVES = _having("move")
LAYOUT = _having("layout")
WRITES_ONLY = _having("writes only")
SAME_RANK = _having("same rank")
NOT_TILED = _having("not tiled")
COUNTER = _having("counter")
ELEMENTWISE = _having("elementwise")
TILEABLE = _having("tileable") | ELEMENTWISE
TRANSCENDENTAL = _having("transcendental")
NO_MODEL = _having("no model")
COLLECTIVES = _having("collective")
CALLS = _having("call")
