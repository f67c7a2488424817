"""Makes gguf_blocks.txt: quantised blocks and what they hold, as the Python package gguf reads them.

    pip install "numpy==1.26.4" "gguf==0.19.0"
    python3 tests/data/gguf_blocks.py > tests/data/gguf_blocks.txt

A line is the type, the bytes in hexadecimal, and the numbers. Codes are random bytes; the
half-precision scales and minima are small random numbers.
"""

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Type and the places of its half-precision numbers.
BLOCKS = [
    (Type.F32, None),
    (Type.F16, [0]),
    (Type.BF16, None),
    (Type.Q8_0, [0]),
    (Type.Q4_0, [0]),
    (Type.Q4_1, [0, 2]),
    (Type.Q4_K, [0, 2]),
    (Type.Q6_K, [208]),
]

generator = np.random.default_rng(7)
for kind, halves in BLOCKS:
    _, size = GGML_QUANT_SIZES[kind]
    for _ in range(2):
        if kind == Type.F32:
            data = np.float32(generator.normal()).tobytes()
        elif kind == Type.BF16:
            data = np.float32(generator.normal()).tobytes()[2:]
        else:
            block = bytearray(generator.integers(0, 256, size, dtype=np.uint8).tobytes())
            for at in halves:
                block[at : at + 2] = np.float16(generator.normal()).tobytes()
            data = bytes(block)
        raw = np.frombuffer(data, dtype=np.uint8)
        if kind == Type.F32:
            numbers = raw.view(np.float32)
        elif kind == Type.F16:
            numbers = raw.view(np.float16).astype(np.float32)
        else:
            numbers = dequantize(raw.reshape(1, -1), kind).ravel()
        print(kind.name, data.hex(), " ".join(f"{x:.9g}" for x in numbers))
