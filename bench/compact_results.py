"""Shortens Google Benchmark's JSON to what a record needs: context, command, one line a benchmark.

    python3 compact_results.py out.json 'decode_attention --benchmark_out=out.json' > results/name.json
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    full = json.load(file)
context = full["context"]
keep = ["date", "processor", "num_cpus", "caches", "kokkos", "compiler", "flags", "commit", "load_avg"]
counters_not = {"name", "run_name", "run_type", "repetitions", "repetition_index", "threads", "iterations",
                "real_time", "cpu_time", "time_unit", "family_index", "per_family_instance_index"}
print("{")
print('  "command": ' + json.dumps(sys.argv[2]) + ",")
for key in keep:
    if key == "caches":
        sizes = {f"L{c['level']} {c['type']}": c["size"] for c in context["caches"]}
        print('  "cache_bytes": ' + json.dumps(sizes) + ",")
    elif key in context:
        print(f'  "{key}": ' + json.dumps(context[key]) + ",")
print('  "benchmarks": {')
lines = []
for run in full["benchmarks"]:
    numbers = {k: float(f"{v:.4g}") for k, v in run.items() if k not in counters_not}
    numbers["iterations"] = run["iterations"]
    lines.append("    " + json.dumps(run["name"].removesuffix("/real_time")) + ": " + json.dumps(numbers))
print(",\n".join(lines))
print("  }\n}")
