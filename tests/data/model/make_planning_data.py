#!/usr/bin/env python3
"""Writes the golden data of the cache-planning tests.

usage: make_planning_data.py page_math.json hybrid_models.json OUTPUT_DIRECTORY

The two inputs are tables of published cache geometry: packed slot sizes, page sizes, the block-size
alignment of hybrid models, boundary protection, and the full-attention layers of real model
configurations. Every number is recomputed here from the published formulas before it is written, so
that the C++ code and this script are two implementations of the same rules:

  key    = d if 8 bits (fp8) else ceil(d * bits / 8) + 2
  value  = ceil(d * bits / 8) + 4
  slot   = key + value, rounded up to even
  page   = block_size * kv_heads * slot          (uncompressed: block_size * kv_heads * d * 4)
  block  = 16 * ceil(state / (16 * bytes_per_token))
  common = lcm(compressed, uncompressed) bytes per token where layers are skipped
"""
import json
import math
import sys

BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def packed(head_size, bits):
    return -(-head_size * bits // 8)


def slot(head_size, preset):
    key_bits, value_bits = BITS[preset]
    key = head_size if key_bits == 8 else packed(head_size, key_bits) + 2
    value = packed(head_size, value_bits) + 4
    return key, value, key + value, (key + value + 1) // 2 * 2


def write_csv(path, comment, header, rows):
    with open(path, "w", encoding="ascii") as out:
        out.write(f"# {comment}\n" + ",".join(header) + "\n")
        for row in rows:
            out.write(",".join(str(cell) for cell in row) + "\n")


def main(page_math, hybrid_models, directory):
    with open(page_math, encoding="utf-8") as file:
        math_tables = json.load(file)
    with open(hybrid_models, encoding="utf-8") as file:
        models = json.load(file)

    rows = []
    for entry in math_tables["slots"]:
        row = slot(entry["head_size"], entry["preset"])
        assert row == (entry["key_packed_size"], entry["value_packed_size"], entry["slot_size"],
                       entry["slot_size_aligned"]), entry
        rows.append((entry["head_size"], entry["preset"]) + row)
    write_csv(f"{directory}/slots.csv", "packed sizes of the published presets",
              ("head_size", "preset", "key", "value", "slot", "slot_aligned"), rows)

    rows = []
    for entry in math_tables["pages"]:
        heads, width, block = entry["num_kv_heads"], entry["head_size"], entry["block_size"]
        token = heads * slot(width, entry["preset"])[3]
        dense = heads * width * 4
        row = (block * token, block * dense, token, dense, math.lcm(token, dense))
        assert row == (entry["page_size_bytes"], entry["dense_bf16_page_size_bytes"],
                       entry["bytes_per_token"], entry["dense_bytes_per_token"],
                       entry["lcm_bytes_per_token"]), entry
        rows.append((width, heads, block, entry["preset"]) + row)
    write_csv(f"{directory}/pages.csv", "page sizes of the published presets and of bf16",
              ("head_size", "kv_heads", "block", "preset", "page", "dense_page", "token",
               "dense_token", "lcm_token"), rows)

    rows = []
    for entry in math_tables["hybrid_alignment"]:
        heads, width, state = (entry["num_kv_heads"], entry["head_size"],
                               entry["mamba_page_size_bytes"])
        preset = entry["cache_dtype"]
        assert entry["kernel_alignment"] == 16
        dense = heads * width * 4
        token = dense if preset == "bf16" else heads * slot(width, preset)[3]
        block = 16 * -(-state // (16 * token))
        row = (token, block, block * token, block * token - state)
        assert row == (entry["bytes_per_token"], entry["block_size"],
                       entry["attention_page_size_bytes"], entry["mamba_page_padding_bytes"]), entry
        skip_row = (0, 0, 0, 0, 0, 0)
        if "with_skip_layers" in entry:
            skip = entry["with_skip_layers"]
            common = math.lcm(token, dense)
            block = 16 * -(-state // (16 * common))
            page = block * common
            skip_row = (common, block, page, page // token, page // dense, page - state)
            assert skip_row == (skip["lcm_bytes_per_token"], skip["block_size"],
                                skip["page_size_bytes"], skip["tq_block_size"],
                                skip["dense_block_size"], skip["mamba_page_padding_bytes"]), entry
        rows.append((entry["model"].replace(",", ";"), width, heads, state, preset) + row + skip_row)
    write_csv(f"{directory}/hybrid_alignment.csv",
              "published block-size alignment, 16-token kernels; 0 = not given with skipped layers",
              ("model", "head_size", "kv_heads", "state", "preset", "token", "block", "page",
               "padding", "lcm_token", "skip_block", "skip_page", "tq_block", "dense_block",
               "skip_padding"), rows)

    rows = []
    for entry in math_tables["boundary_skip"]:
        layers, n = entry["num_hidden_layers"], entry["n"]
        kept = min(n, layers // 2)
        skip = sorted(set(range(kept)) | set(range(layers - kept, layers)))
        assert skip == entry["skip"], entry
        rows.append((layers, n, " ".join(map(str, skip))))
    write_csv(f"{directory}/boundary_skip.csv", "first and last n layers of dense models",
              ("layers", "n", "skip"), rows)

    with open(f"{directory}/hybrid_models.json", "w", encoding="ascii") as out:
        lines = [json.dumps({key: model[key] for key in
                             ("model", "config", "is_hybrid", "full_attention_layers")},
                            separators=(",", ":")) for model in models]
        out.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
