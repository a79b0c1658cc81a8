"""One of two processes: says what it shares with the other, then one of them fails.

Its arguments are the number of processes, which this is, and where process 0 is; none
where a cluster says that.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from experiments.global_arrays import on_devices, rows_here
from experiments.processes import ProcessesConfig, join
from revremat import UserError, sharding

count, index, coordinator = [*sys.argv[1:], None, None, None][:3]
told = ProcessesConfig(int(count), int(index), coordinator) if count else None
joined = join(told or ProcessesConfig(), "cpu:4")

mesh = sharding.make_mesh({"data": 4})
where = NamedSharding(mesh, PartitionSpec("data"))
like = jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=where)
rows = rows_here(like)
own = np.arange(24, dtype=np.float32).reshape(8, 3)[list(rows)]
batch = on_devices({"x": own}, {"x": like}, rows)["x"]

add_up = jax.jit(jnp.sum)
stopped = []
for step in range(6):
    found = float(add_up(batch))
    asked = "SIGTERM" if (joined.index, step) == (1, 3) else ""
    stopped.append(joined.agree_to_stop(step, asked))
report = {
    "index": joined.index,
    "count": joined.count,
    "devices": jax.device_count(),
    "rows": rows,
    "sum": found,
    "handed_out": joined.hand_out("it", lambda: [f"of process {joined.index}"]),
    "stopped": stopped,
}
print(json.dumps(report), flush=True)
if joined.index == 1:
    joined.fail(UserError("no room on this machine"))
add_up(batch).block_until_ready()  # waits for the other for ever
