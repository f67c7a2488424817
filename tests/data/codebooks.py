"""Makes codebooks.txt from a JSON table of Lloyd-Max codebooks of unit-vector coordinates.

    python3 codebooks.py table.json > codebooks.txt

The table came from a program that shares nothing with the library: it solves both Lloyd conditions by
fixed-point iteration in double precision with closed-form moments of the density (1 - x^2)^((d-3)/2).
Its form is {"beta": {dim: {bits: {"centroids": [ascending], "mse_per_coord": x}}}}.

A line of codebooks.txt: dim, bits, mean squared error of one coordinate, then pairs of (index, value) of
positive centroids, index 0 being the smallest: all of them up to 4 bits, five of them beyond.
"""

import json
import sys

with open(sys.argv[1], encoding="ascii") as table:
    beta = json.load(table)["beta"]
for dim in sorted(beta, key=int):
    for bits in sorted(beta[dim], key=int):
        entry = beta[dim][bits]
        positive = entry["centroids"][len(entry["centroids"]) // 2:]
        half = len(positive)
        kept = range(half) if half <= 8 else [0, half // 4, half // 2, 3 * half // 4, half - 1]
        pairs = " ".join(f"{i} {positive[i]!r}" for i in kept)
        print(dim, bits, repr(entry["mse_per_coord"]), pairs)
