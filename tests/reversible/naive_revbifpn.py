"""RevBiFPN in plain NumPy on `[batch, channels, height, width]`, led by names alone.

It reads the names and shapes of the authors' state dict and knows nothing of our model.
What runs is what the names say: convolutions are 1 x 1, or depthwise where they are
called `dw_conv`; a map from stream i to j strides by 2^(j - i).
"""

import re
from itertools import pairwise

import numpy as np

# By stream, in the stack and behind the neck; then features, classes and layer groups.
S0 = ((48, 64, 80, 160), (48, 64, 128, 320), 1280, 1000, 5)
S3 = ((128, 160, 208, 416), (128, 160, 336, 848), 3408, 1000, 6)
S6 = ((320, 416, 528, 1056), (320, 416, 848, 2128), 8528, 1000, 8)
# By stream: expansion and squeeze; in the stack, in the neck and the head.
EXPAND, SQUEEZE = (1, 1, 2, 2), (4, 4, 8, 0)
OUTER_EXPAND, OUTER_SQUEEZE = (1, 2, 2, 2), (4, 4, 8, 8)
BLOCK_KERNEL = (3, 5, 5, 5)
WIDER = (0, 0, 0, 2)


def shapes(variant=S0):
    """Names and shapes of a variant's state dict, in PyTorch's layouts."""
    channels, neck_channels, features, classes, groups = variant
    found = {}

    def norm(name, width):
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.{part}"] = (width,)
        found[f"{name}.num_batches_tracked"] = ()

    def conv(name, *shape):
        found[f"{name}.conv.weight"] = shape
        norm(f"{name}.norm", shape[0])

    def mbconv(name, inputs, outputs, kernel, expand, squeeze):
        inner = inputs * expand
        if expand > 1:
            conv(f"{name}.exp_conv", inner, inputs, 1, 1)
        conv(f"{name}.dw_conv", inner, 1, kernel, kernel)
        if squeeze:
            few = max(1, inputs // squeeze)
            for at, shape in ((1, (few, inner, 1, 1)), (3, (inner, few, 1, 1))):
                found[f"{name}.se.se.{at}.weight"] = shape
                found[f"{name}.se.se.{at}.bias"] = shape[:1]
        conv(f"{name}.project_conv", outputs, inner, 1, 1)

    place = 1
    for group in range(1, groups + 1):
        for _ in range(2):
            for k in range(min(group, 4)):
                half = channels[k] // 2
                for which in ("f.xform_0_1", "g.xform_0_1"):
                    name = f"rev_stack.{place}.rev_transform_{k}.{which}"
                    mbconv(name, half, half, BLOCK_KERNEL[k], EXPAND[k], SQUEEZE[k])
            place += 1
        last = min(group, 3)
        for fine in range(last + 1):
            for coarse in range(fine + 1, last + 1):
                ends, how = (channels[fine], channels[coarse]), (EXPAND[fine],)
                how += (SQUEEZE[fine],)
                kernel = 2 * 2 ** (coarse - fine) - 1 + WIDER[fine]
                mbconv(
                    f"rev_stack.{place}.f.xform_{fine}_{coarse}", *ends, kernel, *how
                )
                up = f"rev_stack.{place}.g.xform_{last - coarse}_{last - fine}.0"
                mbconv(up, *ends[::-1], 3 + WIDER[coarse], *how)
        place += 1
    for k, ends in enumerate(zip(channels, neck_channels, strict=True)):
        name = f"rev_stack.recomp_op.recomp_transform_{k}"
        mbconv(name, *ends, 5, OUTER_EXPAND[k], OUTER_SQUEEZE[k])
    for k, ends in enumerate(pairwise(neck_channels)):
        name = f"head.pyramid_heads.{k}"
        mbconv(name, *ends, 5, OUTER_EXPAND[k], OUTER_SQUEEZE[k])
    conv("head.final_conv", features, neck_channels[-1], 1, 1)
    found["head.fc.weight"], found["head.fc.bias"] = (classes, features), (classes,)
    return found


def drawn(seed=0):
    """A state dict of random numbers that keep activations near one."""
    rng = np.random.default_rng(seed)

    def draw(name, shape):
        if name.endswith("num_batches_tracked"):
            return np.asarray(7)
        if name.endswith("running_var"):
            return rng.uniform(0.5, 1.5, shape)
        if name.endswith("norm.weight"):
            return rng.uniform(0.3, 0.9, shape)
        fan_in = np.prod(shape[1:]) if len(shape) > 1 else 100
        return rng.normal(size=shape) * (1.5 / fan_in) ** 0.5

    return {
        name: draw(name, shape).astype(np.float32 if shape else np.int64)
        for name, shape in shapes().items()
    }


class Naive:
    """The network that a state dict describes; running statistics are used."""

    def __init__(self, arrays):
        self.arrays = {k: np.asarray(v, np.float64) for k, v in arrays.items()}

    def has(self, prefix):
        return any(name.startswith(prefix) for name in self.arrays)

    def conv(self, name, x, stride=1):
        kernel = self.arrays[f"{name}.weight"]
        size, padding = kernel.shape[2], (kernel.shape[2] - 1) // 2
        if ".dw_conv" not in name:
            assert size == stride == 1
            y = np.einsum("oi,bihw->bohw", kernel[:, :, 0, 0], x)
        else:
            edges = (padding, padding)
            wide = np.pad(x, ((0, 0), (0, 0), edges, edges))
            y = 0
            for row in range(size):
                for column in range(size):
                    seen = wide[:, :, row:, column:]
                    seen = seen[:, :, : x.shape[2] : stride, : x.shape[3] : stride]
                    y = y + seen * kernel[:, 0, row, column, None, None]
        bias = self.arrays.get(f"{name}.bias")
        return y if bias is None else y + bias[:, None, None]

    def conv_norm(self, name, x, stride=1, activate=True):
        y = self.conv(f"{name}.conv", x, stride)
        norm = lambda part: self.arrays[f"{name}.norm.{part}"][:, None, None]
        y = (y - norm("running_mean")) / np.sqrt(norm("running_var") + 1e-3)
        y = y * norm("weight") + norm("bias")
        return y * gate(y) if activate else y

    def mbconv(self, name, x, stride=1):
        if self.has(f"{name}.exp_conv"):
            x = self.conv_norm(f"{name}.exp_conv", x)
        x = self.conv_norm(f"{name}.dw_conv", x, stride)
        if self.has(f"{name}.se"):
            mean = x.mean(axis=(2, 3), keepdims=True)
            hidden = self.conv(f"{name}.se.se.1", mean)
            x = x * gate(self.conv(f"{name}.se.se.3", hidden * gate(hidden)))
        return self.conv_norm(f"{name}.project_conv", x, activate=False)

    def block(self, name, x):
        first, second = np.split(x, 2, axis=1)
        second = second + self.mbconv(f"{name}.f.xform_0_1", first)
        first = first + self.mbconv(f"{name}.g.xform_0_1", second)
        return np.concatenate([first, second], axis=1)

    def silo(self, name, streams):
        pattern = re.compile(re.escape(name) + r"\.f\.xform_(\d)_(\d)\.dw_conv\.conv")
        pairs = sorted(
            tuple(map(int, m.groups())) for m in map(pattern.match, self.arrays) if m
        )
        count = 1 + max(j for _, j in pairs)
        middle = [*streams, *[0] * (count - len(streams))]
        for i, j in pairs:
            x = self.mbconv(f"{name}.f.xform_{i}_{j}", streams[i], 2 ** (j - i))
            middle[j] = middle[j] + x
        # The other half is the same, its streams counted from the other end.
        middle = middle[::-1]
        after = list(middle)
        for i, j in pairs:
            x = self.mbconv(f"{name}.g.xform_{i}_{j}.0", middle[i])
            after[j] = after[j] + enlarged(x, 2 ** (j - i))
        return after[::-1]

    def streams(self, images):
        streams, place = [stem(images)], 1
        while self.has(f"rev_stack.{place}."):
            name = f"rev_stack.{place}"
            if self.has(f"{name}.rev_transform_0"):
                streams = [
                    self.block(f"{name}.rev_transform_{k}", x)
                    for k, x in enumerate(streams)
                ]
            else:
                streams = self.silo(name, streams)
            place += 1
        return streams

    def __call__(self, images):
        """Logits, from `[batch, 3, height, width]`."""
        neck = [
            self.mbconv(f"rev_stack.recomp_op.recomp_transform_{k}", x)
            for k, x in enumerate(self.streams(images))
        ]
        x = neck[0]
        for k, stream in enumerate(neck[1:]):
            x = stream + self.mbconv(f"head.pyramid_heads.{k}", x, 2)
        features = self.conv_norm("head.final_conv", x).mean(axis=(2, 3))
        return features @ self.arrays["head.fc.weight"].T + self.arrays["head.fc.bias"]


def gate(x):
    return np.clip(x + 3, 0, 6) / 6


def stem(images):
    """Blocks of 4 x 4 pixels as channels, pixel by pixel."""
    pixels = [
        images[:, :, row::4, column::4] for row in range(4) for column in range(4)
    ]
    return np.concatenate(pixels, axis=1)


def enlarged(x, times):
    """Bilinear, half-pixel centres, edges held."""

    def weights(size):
        matrix = np.zeros((size * times, size))
        for k in range(size * times):
            at = max((k + 0.5) / times - 0.5, 0.0)
            low = int(at)
            high = min(low + 1, size - 1)
            matrix[k, low] += 1 - (at - low)
            matrix[k, high] += at - low
        return matrix

    rows, columns = weights(x.shape[2]), weights(x.shape[3])
    return np.einsum("Hh,bchw,Ww->bcHW", rows, x, columns, optimize=True)
