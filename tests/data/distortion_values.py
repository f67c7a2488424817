#!/usr/bin/env python3
"""Writes distortion.csv and values.csv, the tables that the quantizer tests compare with.

    distortion_values.py distortion.json values.json

The two JSON files come from a separate program in Python (numpy): exact integrals for the distortion of
Algorithm 1, and Monte Carlo over 1,000,000 unit vectors with independent Gaussian coordinates for the rest.
Only the numbers that the tests use are kept, to 7 digits.
"""

import json
import pathlib
import sys


def write(name, comment, header, rows):
    lines = ["# " + comment, header] + [",".join(str(x) for x in row) for row in rows]
    (pathlib.Path(__file__).parent / name).write_text("\n".join(lines) + "\n")


def digits(x):
    return f"{x:.7g}"


def main():
    distortion = json.load(open(sys.argv[1]))
    values = json.load(open(sys.argv[2]))
    rows = []
    for dim, by_bits in distortion["qmse"].items():
        for bits, entry in by_bits.items():
            sketch = distortion["qprod"][dim][bits]
            rows.append([dim, bits, digits(entry["D_mse_exact"]), digits(entry["D_mse_mc"]["sd_per_vector"]),
                         *[digits(entry[key]["mean"]) for key in
                           ("unit_mse", "one_minus_cos2(LS MSE)", "tan2(unbiased MSE)")],
                         digits(sketch["gauss_S"]["random_y"]["theory_times_d"]),
                         digits(sketch["orth_S_exact_scale"]["random_y_mc_times_d"])])
    write("distortion.csv",
          "unit vectors; plain: exact D_mse; unit, least_squares, unbiased: mean squared error; gaussian, "
          "orthogonal: dim * variance of <y, decoded x>, y uniform, of Algorithm 2",
          "dim,bits,plain,plain_sd,unit,least_squares,unbiased,gaussian,orthogonal", rows)
    rows = []
    for entry in values["all"]:
        if entry["d"] != 128:
            continue
        if entry["scheme"] == "LloydMax rotated, LS scale":
            rows.append(["rotated", 0, entry["index_bits"], entry["total_bits"], digits(entry["rel_mse"]),
                         digits(entry["cos"])])
        elif entry["scheme"].startswith("asym_minmax_fp16x2"):
            group = entry["scheme"].split("g=")[1].split()[0]
            rows.append(["groups", group, entry["index_bits"], entry["total_bits"], digits(entry["rel_mse"]),
                         digits(entry["cos"])])
    write("values.csv", "Gaussian vectors of 128 coordinates; relative mean squared error and mean cosine",
          "scheme,group,bits,total_bits,mse,cosine", rows)


if __name__ == "__main__":
    main()
