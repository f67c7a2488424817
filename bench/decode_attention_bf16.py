"""Times PyTorch's attention over an uncompressed bf16 cache, for the shapes of decode_attention_device.

    python3 decode_attention_bf16.py [--json FILE]

Each shape runs with every backend of scaled_dot_product_attention that takes it, in two forms: query heads
as heads (enable_gqa), and the query heads of a kv head as query rows of one head, which reads the cache once.
The best is printed. Graph replays over caches of more than 400 MB in turn; median of 7 rounds, in
microseconds a step.
"""

import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [
    (1, 32, 8, 128, 2048), (1, 32, 8, 128, 8192), (1, 32, 8, 128, 32768), (1, 32, 8, 128, 131072),
    (8, 32, 8, 128, 32768), (32, 32, 8, 128, 16384), (64, 32, 8, 128, 2048), (1, 24, 4, 256, 131072),
    (8, 64, 8, 128, 32768), (16, 8, 8, 128, 16384),
]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def time_graph(step, copies):
    steps = max(copies, 16 // copies * copies)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            step(i % copies)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(steps):
            step(i % copies)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rounds = []
    for round_number in range(8):
        start.record()
        for _ in range(3):
            graph.replay()
        stop.record()
        stop.synchronize()
        if round_number > 0:
            rounds.append(start.elapsed_time(stop) * 1e3 / 3 / steps)
    return statistics.median(rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = []
    for b, hq, hk, d, n in SHAPES:
        size = 2 * b * hk * n * d * 2
        copies = max(2, (400 << 20) // size + 1)
        keys = [torch.randn(b, hk, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        values = [torch.randn(b, hk, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        query = torch.randn(b, hq, 1, d, device="cuda", dtype=torch.bfloat16)
        rows = query.view(b, hk, hq // hk, d)
        forms = {
            "gqa": lambda i: scaled_dot_product_attention(query, keys[i], values[i], enable_gqa=True),
            "rows": lambda i: scaled_dot_product_attention(rows, keys[i], values[i]),
        }
        times = {}
        for backend, choice in BACKENDS.items():
            for form, step in forms.items():
                try:
                    with sdpa_kernel(choice):
                        times[f"{backend}/{form}"] = time_graph(step, copies)
                except RuntimeError:
                    continue
        best = min(times, key=times.get)
        name = f"b{b}/hq{hq}/hk{hk}/d{d}/n{n}"
        print(f"{name:36} {times[best]:10.2f} us  {best}  {size / times[best] * 1e-3:.0f} GB/s", flush=True)
        results.append({"name": name, "graph_us": times[best], "best": best, "all": times})
        del keys, values
        torch.cuda.empty_cache()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "steps": results}, file, indent=2)


if __name__ == "__main__":
    main()
