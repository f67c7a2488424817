#pragma once

#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/device/preferred_order.hpp>
#include <turboquant/io/byte_record.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// @file
/// A cache as bytes that another process or machine can read.
///
/// Little-endian 64-bit numbers without padding: a mark, the version, the number type of the rows,
/// the number of layers; for every layer its number, its options, its codec, three positions, then
/// the sizes and bytes of sink rows, window rows and tiles (`CaptureContents`); at the end a
/// checksum of everything before. Tiles are in host order and of 64 tokens, rows in token order, so
/// that equal tokens in the same places under equal options give equal bytes, wherever they were
/// made.

namespace turboquant {

namespace detail {

inline constexpr std::uint64_t snapshot_mark = 0x5041'4E53'4B56'5154U;  ///< "TQVKSNAP"
inline constexpr std::int64_t snapshot_version = 1;

/// Calls `call(name, field)` for everything that decides what rows and tiles mean.
template <class Options, class Call>
void for_each_capture_field(Options& options, const Call& call) {
  call("kv_heads", options.shape.kv_heads);
  call("key_dim", options.shape.key_dim);
  call("value_dim", options.shape.value_dim);
  call("window_capacity", options.window_capacity);
  call("sinks", options.sinks);
  call("sliding_window", options.sliding_window);
  call("rollback_tokens", options.rollback_tokens);
  call("block_size", options.block_size);
}
template <class Options, class Call>
void for_each_codec_field(Options& options, const Call& call) {
  call("key_codec", options.format.key_codec);
  call("key_bits", options.format.key_bits);
  call("codec.key_dim", options.format.key_dim);
  call("value_codec", options.format.value_codec);
  call("value_bits", options.format.value_bits);
  call("codec.value_dim", options.format.value_dim);
  call("value_group", options.format.value_group);
  call("key_centring", options.format.key_centring);
  call("tile_tokens", options.format.tile_tokens);
  call("seed", options.seed);
  call("key_scale_rule", options.key_scale_rule);
  call("value_scale_rule", options.value_scale_rule);
}

/// A layer as a snapshot describes it.
template <class T>
struct SnapshotLayer {
  std::int64_t number = 0;
  CaptureOptions options{};
  std::optional<TileCodecOptions> codec{};  ///< in host order
  CaptureContents<T> contents{};
};

template <class T>
[[nodiscard]] std::vector<std::byte> write_snapshot(const std::vector<SnapshotLayer<T>>& layers) {
  ByteWriter out;
  const auto field = [&](const char*, auto value) { out.number(static_cast<std::int64_t>(value)); };
  const auto array = [&](const auto& numbers) {
    field("", numbers.size());
    out.append(numbers.data(), numbers.size() * sizeof(numbers[0]));
  };
  out.number(snapshot_mark);
  field("", snapshot_version);
  field("", row_type_of<T>);
  field("", layers.size());
  for (const SnapshotLayer<T>& layer : layers) {
    field("", layer.number);
    for_each_capture_field(layer.options, field);
    field("", layer.codec.has_value());
    if (layer.codec) {
      field("", TileFormat::version);
      for_each_codec_field(*layer.codec, field);
    }
    field("", layer.contents.length);
    field("", layer.contents.history_begin);
    field("", layer.contents.window_begin);
    array(layer.contents.sink_keys);
    array(layer.contents.sink_values);
    array(layer.contents.window_keys);
    array(layer.contents.window_values);
    array(layer.contents.tiles);
  }
  out.number(checksum_of(out.bytes()));
  return out.take();
}

/// @throws Error(format) for bytes that `write_snapshot<T>` cannot have made
template <class T>
[[nodiscard]] std::vector<SnapshotLayer<T>> read_snapshot(const char* caller,
                                                          std::span<const std::byte> bytes) {
  ByteReader in(caller, bytes);
  const std::uint64_t mark = in.unsigned_number("the mark");
  std::uint64_t swapped = 0;
  for (unsigned i = 0; i < 8; ++i) {
    swapped |= (mark >> (8 * i) & 0xFFU) << (56 - 8 * i);
  }
  require(swapped != snapshot_mark, ErrorCode::format, caller,
          ": the bytes of every number are in reverse order, expected little-endian");
  require(mark == snapshot_mark, ErrorCode::format, caller,
          ": the bytes do not begin like a snapshot");
  require(in.left() >= 8, ErrorCode::format, caller, ": the bytes end at ", bytes.size(),
          ", expected a checksum");
  const std::int64_t version = in.number("version");
  require(version == snapshot_version, ErrorCode::format, caller, ": version is ", version,
          ", expected ", snapshot_version);
  const std::size_t body = bytes.size() - 8;
  ByteReader end(caller, bytes.subspan(body));
  require(end.unsigned_number("the checksum") == checksum_of(bytes.first(body)), ErrorCode::format,
          caller, ": the checksum is not that of the ", body,
          " bytes before it, expected bytes that are whole and unchanged");
  const auto number_type = in.number("row type", 0, 255);
  require(number_type == static_cast<std::int64_t>(row_type_of<T>), ErrorCode::format, caller,
          ": rows have number type ", number_type, ", expected ", static_cast<int>(row_type_of<T>),
          " (0 float, 1 float16, 2 bfloat16)");
  const auto field = [&](const char* name, auto& value) {
    using Field = std::remove_reference_t<decltype(value)>;
    if constexpr (std::is_same_v<Field, std::uint64_t>) {
      value = in.unsigned_number(name);
    } else if constexpr (std::is_enum_v<Field>) {
      value = static_cast<Field>(in.number(name, 0, 15));
    } else {
      value = static_cast<Field>(in.number(name, 0, std::int64_t{1} << 30U));
    }
  };
  const auto array = [&](const char* name, auto& numbers) {
    using Number = typename std::remove_reference_t<decltype(numbers)>::value_type;
    const auto most = static_cast<std::int64_t>(in.left() / sizeof(Number));
    const auto count = static_cast<std::size_t>(in.number(name, 0, most));
    const std::span<const std::byte> from = in.take(count * sizeof(Number), name);
    numbers.resize(count);
    if (count > 0) {
      std::memcpy(numbers.data(), from.data(), from.size());
    }
  };
  std::vector<SnapshotLayer<T>> layers;
  const std::int64_t count = in.number("number of layers", 0, 1 << 20U);
  for (std::int64_t i = 0; i < count; ++i) {
    SnapshotLayer<T> layer;
    layer.number = in.number("layer", 0, 1 << 20U);
    for_each_capture_field(layer.options, field);
    if (in.number("whether the layer is compressed", 0, 1) == 1) {
      static_cast<void>(in.number("tile format version", TileFormat::version, TileFormat::version));
      for_each_codec_field(layer.codec.emplace(), field);
    }
    layer.contents.length = in.number("length");
    layer.contents.history_begin = in.number("history_begin");
    layer.contents.window_begin = in.number("window_begin");
    array("sink_keys", layer.contents.sink_keys);
    array("sink_values", layer.contents.sink_values);
    array("window_keys", layer.contents.window_keys);
    array("window_values", layer.contents.window_values);
    array("tiles", layer.contents.tiles);
    layers.push_back(std::move(layer));
  }
  require(in.left() == 8, ErrorCode::format, caller, ": ", in.left(),
          " bytes follow the last layer, expected the 8 of the checksum");
  return layers;
}

/// @throws Error(shape_mismatch) naming the field in which a snapshot's layer differs from another
template <class T>
void require_same_layer(const char* caller, SnapshotLayer<T>& stored, const CaptureOptions& options,
                        const std::optional<TileCodecOptions>& codec) {
  std::vector<std::uint64_t> expected;
  const auto collect = [&](const char*, auto value) {
    expected.push_back(static_cast<std::uint64_t>(value));
  };
  std::size_t next = 0;
  const auto compare = [&](const char* name, auto value) {
    const std::uint64_t wanted = expected[next++];
    require(static_cast<std::uint64_t>(value) == wanted, ErrorCode::shape_mismatch, caller,
            ": layer ", stored.number, " was stored with ", name, " = ",
            static_cast<std::uint64_t>(value), ", expected that of the cache, ", wanted);
  };
  for_each_capture_field(options, collect);
  for_each_capture_field(stored.options, compare);
  require(stored.codec.has_value() == codec.has_value(), ErrorCode::shape_mismatch, caller,
          ": layer ", stored.number, " was stored ", stored.codec ? "" : "un",
          "compressed, expected ", codec ? "" : "un", "compressed as in the cache");
  if (codec) {
    for_each_codec_field(*codec, collect);
    for_each_codec_field(*stored.codec, compare);
  }
}

/// What a snapshot tells of an engine.
template <class Exec, class Space, class T>
[[nodiscard]] SnapshotLayer<T> snapshot_layer(const Exec& exec, std::int64_t number,
                                              const KVCaptureEngine<Space, T>& engine) {
  SnapshotLayer<T> layer{number, engine.options(), std::nullopt, engine.contents(exec)};
  if (engine.compressed()) {
    layer.codec = engine.store().codec().options();
  }
  return layer;
}

}  // namespace detail

/// One layer of one sequence as bytes. Waits for `exec`. O(bytes).
template <class Exec, class Space, class T>
[[nodiscard]] std::vector<std::byte> save_capture(const Exec& exec,
                                                  const KVCaptureEngine<Space, T>& engine) {
  return detail::write_snapshot<T>({detail::snapshot_layer(exec, 0, engine)});
}

/// The engine that `save_capture` saw, with the same options and tokens: what it computes and
/// stores from here on is the same, bit for bit, and saving it gives the same bytes.
/// @param bytes of `save_capture` with the same `T`, on any machine
/// @param order of the tiles in memory; the content does not depend on it
/// @throws Error(format) for other bytes, also damaged ones; what the constructor and
/// `KVCaptureEngine::restore` throw. Waits for `exec`. O(bytes).
template <class Space, class T, class Exec>
[[nodiscard]] KVCaptureEngine<Space, T> load_capture(
    const Exec& exec, std::span<const std::byte> bytes,
    std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>(),
    std::shared_ptr<PagePool<Space>> pool = nullptr, std::optional<TileOrder> order = {}) {
  auto layers = detail::read_snapshot<T>("load_capture", bytes);
  require(layers.size() == 1, ErrorCode::format, "load_capture: the snapshot has ", layers.size(),
          " layers, expected 1");
  detail::SnapshotLayer<T>& layer = layers.front();
  std::optional<TileCodec<Space>> codec;
  if (layer.codec) {
    layer.codec->format.order = order ? *order : preferred_order<Space>(layer.codec->format);
    codec.emplace(*layer.codec);
  }
  KVCaptureEngine<Space, T> engine(layer.options, std::move(codec), std::move(ledger),
                                   std::move(pool));
  engine.restore(exec, std::move(layer.contents));
  return engine;
}

}  // namespace turboquant
